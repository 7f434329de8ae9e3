// TensorBoard's names for what metrics.jsonl holds: "loss" -> "train/loss". One chart group before the slash.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/record/event_log.h"

namespace halflife::train {

// A metric without a name of its own goes under "other/".
std::string TagOf(const std::string& metric);

// Every number and truth value of a line, in the line's order, but what an event carries itself (step and time), and but
// tokens and elapsed_s where the line is not of a trained step: validations and saves share its step, and a curve has one
// point a step.
std::vector<ScalarValue> ScalarsOf(const nlohmann::ordered_json& line);

}  // namespace halflife::train
