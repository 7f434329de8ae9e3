// TensorBoard's names for what metrics.jsonl holds: "loss" -> "train/loss". What stands before the
// slash is a group of charts.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/record/event_log.h"

namespace halflife::train {

// A metric without a name of its own goes under "other/".
std::string TagOf(const std::string& metric);

// Returns every number and truth value of a line, in the line's order, but for two kinds: what an
// event carries itself (step and time), and tokens and elapsed_s of a line that tells of no trained
// step. Validations and saves share its step, and a curve has one point a step.
std::vector<ScalarValue> ScalarsOf(const nlohmann::ordered_json& line);

}  // namespace halflife::train
