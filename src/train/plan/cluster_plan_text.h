// A plan as people and programs read it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/plan/cluster_plan.h"

namespace halflife::train {

// Warnings, memory, the collectives of a step, its time and what it is lost on, as tables.
std::string ClusterPlanText(const ClusterPlan& plan);
// The same numbers, in bytes and seconds; what is not known is null.
nlohmann::ordered_json ClusterPlanJson(const ClusterPlan& plan);

}  // namespace halflife::train
