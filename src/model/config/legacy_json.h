// Reads the configuration in checkpoints from before models were composed of parts. That form has
// one fixed block and stores mixer options as strings: {"mixer": {"name": "gla", "options":
// {"num_heads": "4"}}, "mlp_dim": 0, ...}.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace halflife::model {

bool IsLegacyModelConfig(const nlohmann::json& json);
// Returns the same model in the current form. Errors in it are reported when the result is read
// (kNoUsableCheckpoint).
nlohmann::json FromLegacyModelConfig(const nlohmann::json& legacy);

}  // namespace halflife::model
