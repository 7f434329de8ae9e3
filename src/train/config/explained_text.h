// A recipe as text in which each field has a comment with its meaning.
#pragma once

#include <string>

#include "train/config/run_config.h"

namespace halflife::train {

// Returns ToText(config) with a comment ("# " and the help of the schema) behind each value, or
// above it if the line would be too long. The result is a valid recipe.
std::string ExplainedText(const RunConfig& config);

}  // namespace halflife::train
