// A plan as text and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/plan/cluster_plan.h"

namespace halflife::train {

// Returns tables of warnings, memory, collectives of a step, its time and its losses.
std::string ClusterPlanText(const ClusterPlan& plan);
// Returns the same numbers, in bytes and seconds. Unknown values are null.
nlohmann::ordered_json ClusterPlanJson(const ClusterPlan& plan);

}  // namespace halflife::train
