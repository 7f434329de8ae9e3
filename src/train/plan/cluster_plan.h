// The cost of a recipe on a cluster: memory, collectives, the time of a step and its losses.
// Operations and bytes come from the code of a run (step_operations.h). Times follow from the rates
// of the cluster: they are modelled, not measured.
//
//   const PlanRequest request = ParsePlan("nodes=4,gpus=8,sp=8,zero=1");
//   const ClusterPlan plan = PlanCluster(ConfigFor(config, request), request.cluster);
//   std::cout << ClusterPlanText(plan);
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/plan/cluster.h"
#include "train/plan/memory_plan.h"
#include "train/plan/step_operations.h"

namespace halflife::train {

// All operations of one kind in a step of one rank.
struct PlannedCollective {
  std::string group = {};  // As in comm_bytes/GROUP of metrics.jsonl.
  int group_size = 1;
  std::string kind = {}, what = {};  // For example "all_reduce" and "grad_bucket".
  int64_t count = 0, bytes = 0;      // bytes: counted as in flight records.
  double seconds = 0;                // Sum over all of them.
  double exposed_seconds = 0;        // Time that compute waits for them.
};

// A plan warns above this fraction of a rank's memory, because a part of the memory is an estimate.
constexpr double kPlannedMemory = 0.9;

struct PlannedLoss {
  std::string what = {};
  double seconds = 0;  // Seconds per step.
};

struct ClusterPlan {
  Cluster cluster = {};
  int sp = 1, zero_stage = 0;
  int shard = 1;                                   // Ranks of a shard group.
  int64_t micro_batch = 1, num_micro_batches = 1;  // Per rank and step.
  int64_t parameters = 0, tokens = 0;              // tokens: per step, over all ranks.
  int64_t trained = 0;                             // Parameters; with LoRA, those of A and B.
  MemoryPlan memory = {};
  std::vector<PlannedCollective> collectives = {};
  double step_s = 0, compute_s = 0;  // compute_s: compute without waits, including the update.
  // Mixing of mixers without a measured rate (MeasuredMixingShare).
  double assumed_s = 0;
  double tokens_per_s = 0;  // Over all ranks.
  // Fractions of the peak. mfu_6p counts 6 x parameters FLOPs per token (Chowdhery et al., 2022,
  // appendix B). mfu_full counts all products of forward and backward, including token-to-token
  // work and excluding the embedding lookup.
  double mfu_6p = 0, mfu_full = 0;
  double checkpoint_bytes = 0;
  std::optional<double> save_blocked_s = {};  // Absent: a save blocks until it is written.
  // All time of a step beyond products at the peak rate, largest loss first.
  std::vector<PlannedLoss> losses = {};
  std::vector<std::string> warnings = {};

  std::map<std::string, int64_t> BytesByGroup() const;
  double exposed_s() const;
};

// `config` is complete (CompleteForPlan) for the ranks of the cluster. The plan is for the last
// rank of a row, which waits longest.
ClusterPlan PlanCluster(const RunConfig& config, const Cluster& cluster);
// The same, but reuses earlier rehearsals of the same slices and micro-batch rows.
ClusterPlan PlanCluster(const RunConfig& config, const Cluster& cluster, RowRehearsals& rehearsals);

// Returns the collectives of a rank's step, without times, as a run on these ranks records them.
std::vector<PlannedCollective> CollectivesOf(const StepOperations& step);

// Returns the plan as text: tables of warnings, memory, collectives of a step, its time and its
// losses.
std::string ClusterPlanText(const ClusterPlan& plan);
// Returns the same numbers, in bytes and seconds. Unknown values are null.
nlohmann::ordered_json ClusterPlanJson(const ClusterPlan& plan);

// The fastest way to run a recipe on a cluster.
//
//   const FoundPlan found = SearchPlan(config, ParsePlan("auto,nodes=4,gpus=8"));
//   std::cout << ClusterPlanText(found.plan);
struct FoundPlan {
  ClusterPlan plan;
  // Number of plans considered, and number of those that fit the memory.
  int num_possible = 0, num_fitting = 0;
};

// Searches all values of sp, zero and micro_batch that the request leaves open and that divide
// train.global_batch, and as shard groups a node, several nodes and all ranks. Returns the plan
// with the most tokens per second among those that use at most kPlannedMemory of a rank's memory.
// Ties go to the smallest values. For given sp and zero, the largest micro_batch that fits is the
// fastest, because no cost in the model grows with it. The global batch does not change. `config`
// is complete (CompleteForPlan) except for these fields. Throws Error kUsage if no values divide
// the batch or no plan fits.
FoundPlan SearchPlan(const RunConfig& config, const PlanRequest& request);

}  // namespace halflife::train
