// The class scores that `eval` reports for a whole split and for each row of a table by length.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "eval/class_scores.h"

namespace halflife::cli {

nlohmann::ordered_json ClassScoresJson(const eval::ClassScores& scores);

}  // namespace halflife::cli
