// A model's configuration and the schema's message of it: conversion in both directions, and help
// for its parts. Options are matched by name, so a new part needs no change here.
// tests/train/config/schema_test.cc checks that each option has a field of its type.
#pragma once

#include <string>
#include <vector>

#include "model/config/model_config.h"
#include "model/config/options.h"

namespace halflife::proto {
class ModelConfig;
}

namespace halflife::train {

// Reads the model. Absent fields keep the values of the struct.
void ReadModel(const proto::ModelConfig& message, model::ModelConfig& config);
// Writes all fields.
void WriteModel(const model::ModelConfig& config, proto::ModelConfig& message);

// Help for the parts of a model as plain structs, for `halflife mixers`. Names, types, defaults and
// choices come from the registries. The texts come from the schema.
//
//   for (const KindHelp& kind : HelpOfParts())
//     for (const VariantHelp& variant : kind.variants) Print(variant.name, variant.summary);
struct OptionHelp {
  // A name inside a list has the list's before it, "parts.mixer".
  std::string name;
  std::string type;  // "bool", "int", "number", "word", "list", or the kind of a part
  model::OptionValue usual;
  std::string meaning;
  std::vector<std::string> choices;  // Allowed words. Empty: any value of the type.
};

struct VariantHelp {
  std::string name, summary;
  std::string equation;  // Only mixers have one.
  std::vector<OptionHelp> options;
};

struct KindHelp {
  std::string name;   // As in recipes, for example "mixer".
  std::string usual;  // The default variant.
  std::vector<VariantHelp> variants;
};

// Returns every kind of part that has variants, in the order of recipes.
std::vector<KindHelp> HelpOfParts();

}  // namespace halflife::train
