// What there is to say of each part of a model, as plain structs: `halflife mixers` prints it.
// Names, types, defaults and choices are the registries', words are the schema's.
//
//   for (const KindHelp& kind : HelpOfParts())
//     for (const VariantHelp& variant : kind.variants) Print(variant.name, variant.summary);
#pragma once

#include <string>
#include <vector>

#include "model/config/options.h"

namespace halflife::train {

struct OptionHelp {
  std::string name, type;  // "bool", "int", "number" or "word"
  model::OptionValue usual;
  std::string meaning;
  std::vector<std::string> choices;  // of a word; empty: any
};

struct VariantHelp {
  std::string name, summary;
  std::string equation;  // of mixers, else empty
  std::vector<OptionHelp> options;
};

struct KindHelp {
  std::string name;   // "mixer", as in recipes
  std::string usual;  // the variant of a model that does not say
  std::vector<VariantHelp> variants;
};

// Every kind of part that has variants, as recipes order them.
std::vector<KindHelp> HelpOfParts();

}  // namespace halflife::train
