// Finds the fastest way to run a recipe on a cluster, by the model of cluster_plan.h.
//
//   const FoundPlan found = SearchPlan(config, ParsePlan("auto,nodes=4,gpus=8"));
//   std::cout << ClusterPlanText(found.plan);
#pragma once

#include "train/plan/cluster_plan.h"

namespace halflife::train {

struct FoundPlan {
  ClusterPlan plan;
  // Number of plans considered, and number of those that fit the memory.
  int num_possible = 0, num_fitting = 0;
};

// Searches all values of sp, zero and micro_batch that the request leaves open and that divide
// train.global_batch. Returns the plan with the most tokens per second among those that use at most
// kPlannedMemory of a rank's memory. Ties go to the smallest values. For given sp and zero, the
// largest micro_batch that fits is the fastest, because no cost in the model grows with it. The
// global batch does not change. `config` is complete (CompleteForPlan) except for these fields.
// Error kUsage if no values divide the batch or no plan fits.
FoundPlan SearchPlan(const RunConfig& config, const PlanRequest& request);

}  // namespace halflife::train
