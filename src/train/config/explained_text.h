// A recipe that says of every field what it is.
#pragma once

#include <string>

#include "train/config/run_config.h"

namespace halflife::train {

// ToText, and behind each value, or above where it would be long, "# " and what the schema says of
// the field. It is a recipe, too.
std::string ExplainedText(const RunConfig& config);

}  // namespace halflife::train
