// A model's configuration between its plain structs and the schema's message. Options are matched
// by name, so that a new part needs nothing here; that each has its field, and of its type, is what
// tests/train/config/schema_test.cc checks.
#pragma once

#include "model/config/model_config.h"

namespace halflife::proto {
class ModelConfig;
}

namespace halflife::train {

// Fields that are absent keep the struct's values.
void ReadModel(const proto::ModelConfig& message, model::ModelConfig& config);
// All fields.
void WriteModel(const model::ModelConfig& config, proto::ModelConfig& message);

}  // namespace halflife::train
