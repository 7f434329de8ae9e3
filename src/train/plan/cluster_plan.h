// What a recipe will cost on a cluster: memory, collectives, the time of a step, what that is lost
// on. Operations and bytes are those of the run's own code (step_operations.h); times follow from
// the cluster's rates and are a model, not a measurement.
//
//   const PlanRequest request = ParsePlan("nodes=4,gpus=8,sp=8,zero=1");
//   const ClusterPlan plan = PlanCluster(ConfigFor(config, request), request.cluster);
//   std::cout << ClusterPlanText(plan);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/plan/cluster.h"
#include "train/plan/memory_plan.h"
#include "train/plan/step_operations.h"

namespace halflife::train {

// All of one kind in a step, of one rank.
struct PlannedCollective {
  std::string group = {};  // as in metrics.jsonl's comm_bytes/GROUP
  int group_size = 1;
  std::string kind = {}, what = {};  // "all_reduce", "grad_bucket"
  int64_t count = 0, bytes = 0;      // bytes as flight records count them
  double seconds = 0;                // all of them, one after the other
  double exposed_seconds = 0;        // that compute waits for
};

// The share of a rank's memory beyond which a plan is warned of, as a part of it is estimated.
constexpr double kPlannedMemory = 0.9;

struct PlannedLoss {
  std::string what = {};
  double seconds = 0;  // of a step
};

struct ClusterPlan {
  Cluster cluster = {};
  int sp = 1, zero_stage = 0;
  int64_t micro_batch = 1, num_micro_batches = 1;  // on each rank, in a step
  int64_t parameters = 0, tokens = 0;              // tokens of a step, over all ranks
  MemoryPlan memory = {};
  std::vector<PlannedCollective> collectives = {};
  double step_s = 0, compute_s = 0;  // compute: alone, the update with it
  double tokens_per_s = 0;           // over all ranks
  // Shares of the peak: 6 x parameters a token (Chowdhery et al., 2022, appendix B), and all
  // products of forward and backward, token-to-token work included and the embedding's lookup not.
  double mfu_6p = 0, mfu_full = 0;
  double checkpoint_bytes = 0;
  std::optional<double> save_blocked_s = {};  // absent: for as long as it takes to write
  // What a step takes beyond full products at the peak rate, all of it, the largest first.
  std::vector<PlannedLoss> losses = {};
  std::vector<std::string> warnings = {};

  std::map<std::string, int64_t> BytesByGroup() const;
  double exposed_s() const;
};

// `config`: complete (CompleteForPlan) for the cluster's ranks. The plan is that of the last rank
// of a row, which has the most to wait for.
ClusterPlan PlanCluster(const RunConfig& config, const Cluster& cluster);
// The same, with what was rehearsed for such slices and rows of a micro-batch before.
ClusterPlan PlanCluster(const RunConfig& config, const Cluster& cluster, RowRehearsals& rehearsals);

// The collectives of a rank's step, without times: what a run on these ranks records.
std::vector<PlannedCollective> CollectivesOf(const StepOperations& step);

}  // namespace halflife::train
