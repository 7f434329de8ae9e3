// Conversion of a model's configuration between its plain structs and the schema's message. Options
// are matched by name, so a new part needs no change here. tests/train/config/schema_test.cc checks
// that each option has a field of its type.
#pragma once

#include "model/config/model_config.h"

namespace halflife::proto {
class ModelConfig;
}

namespace halflife::train {

// Absent fields keep the values of the struct.
void ReadModel(const proto::ModelConfig& message, model::ModelConfig& config);
// Writes all fields.
void WriteModel(const model::ModelConfig& config, proto::ModelConfig& message);

}  // namespace halflife::train
