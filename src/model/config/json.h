// Converts single options to JSON, for reports. The JSON form of a whole model is declared in
// model_config.h.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model/config/options.h"

namespace halflife::model {

// Infinite values become strings, because JSON has no infinities.
nlohmann::json ToJson(const OptionValue& value);

}  // namespace halflife::model
