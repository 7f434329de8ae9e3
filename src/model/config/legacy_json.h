// The form of checkpoints from before models were made of parts: one fixed block, and options of
// mixers as words, {"mixer": {"name": "gla", "options": {"num_heads": "4"}}, "mlp_dim": 0, ...}.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace halflife::model {

bool IsLegacyModelConfig(const nlohmann::json& json);
// The same model in today's form. What is wrong with it shows when that is read: Error
// kNoUsableCheckpoint.
nlohmann::json FromLegacyModelConfig(const nlohmann::json& legacy);

}  // namespace halflife::model
