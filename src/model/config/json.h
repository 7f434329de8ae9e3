// Options as JSON values, for those who write reports of them. A whole model's form is in
// model_config.h.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model/config/options.h"

namespace halflife::model {

// JSON has no infinities: they are words.
nlohmann::json ToJson(const OptionValue& value);

}  // namespace halflife::model
