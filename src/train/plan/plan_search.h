// The fastest way to run a recipe on a cluster, by the model of cluster_plan.h.
//
//   const FoundPlan found = SearchPlan(config, ParsePlan("auto,nodes=4,gpus=8"));
//   std::cout << ClusterPlanText(found.plan);
#pragma once

#include "train/plan/cluster_plan.h"

namespace halflife::train {

struct FoundPlan {
  ClusterPlan plan;
  int num_possible = 0, num_fitting = 0;  // plans that were looked at, and that fit the memory
};

// Returns, among all sp, zero and micro_batch that the request leaves open and that divide
// train.global_batch, the plan with the most tokens a second that takes at most kPlannedMemory of a
// rank's memory; of equals the smallest. With sp and zero the largest micro_batch that fits is the
// fastest, as the model has no cost that grows with it. The batch, and so what is trained, stays.
// `config`: complete (CompleteForPlan) but for these. Error kUsage where none divides or none fits.
FoundPlan SearchPlan(const RunConfig& config, const PlanRequest& request);

}  // namespace halflife::train
