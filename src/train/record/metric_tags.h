// TensorBoard names for the metrics of metrics.jsonl: "loss" -> "train/loss". The part before the
// slash is a group of charts.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/record/event_log.h"

namespace halflife::train {

// A metric without its own name goes to the group "other/".
std::string TagOf(const std::string& metric);

// Returns every number and boolean of a line, in the line's order, with two exceptions: (1) step
// and time, which an event contains itself; (2) tokens and elapsed_s of lines that do not describe
// a trained step. Validations and saves share its step, and a curve has one point per step.
std::vector<ScalarValue> ScalarsOf(const nlohmann::ordered_json& line);

}  // namespace halflife::train
