// The memory that a rank of a run needs, by part: what every start is checked against before it
// allocates, and the first lines of a plan.
//
//   const MemoryPlan plan = PlanMemory(config, model, /*world_size=*/8);
//   RequireMemory(config, model, SceneHere(config, 8, /*local_size=*/8), rank);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/sample_order.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "train/config/run_config.h"

namespace halflife::train {

// Bytes on one rank. Exact but for padding: main_and_adam, gradients, compute_copy, saved_copy,
// pinned_staging, and workspace where no document ends inside a row; upper bounds: loss, states;
// estimates: the others.
struct MemoryPlan {
  double main_and_adam = 0, gradients = 0, compute_copy = 0, activations = 0, loss = 0;
  // Most that a layer's kernel borrows on a GPU (ModelCost::WorkspaceBytes).
  double workspace = 0;
  double saved_copy = 0;  // that a save in the background writes; of a GPU's rank on the host
  double states = 0;      // before this rank's slices of rows, kept until backward
  // These three are a cluster's (cluster_plan.h); else 0. Messages between the slices of rows, the
  // largest sent and received; buffers of NCCL and the driver's context; what allocators lose.
  double exchange = 0, libraries = 0, margin = 0;
  double total() const {
    return main_and_adam + gradients + compute_copy + activations + loss + workspace + saved_copy +
           states + exchange + libraries + margin;
  }
  double pinned_staging = 0;  // of a save in the background from a GPU: on the host, not in total()
};
// A plan for a GPU is one for this process's first, or without one for an H100.
MemoryPlan PlanMemory(const RunConfig& config, const model::LanguageModel& model, int world_size);
MemoryPlan PlanMemory(const RunConfig& config, const model::LanguageModel& model, int world_size,
                      const kernels::DeviceLimits& gpu);

// What a plan is made for.
struct PlanScene {
  int world_size = 1;
  int ranks_of_device = 1;    // that share its memory
  uint64_t memory_bytes = 0;  // of the host, or of one GPU; 0: not known here
  int64_t train_tokens = 0;   // of the dataset; 0: not known
  // Of its rows; none: not known, and every step is taken for a whole one.
  std::optional<data::SampleOrder> order = {};
  bool assumed_vocabulary = false;  // CompleteForPlan had to
};
// The scene of this machine, whose `local_size` ranks share the host's memory, or have a GPU each.
PlanScene SceneHere(const RunConfig& config, int world_size, int local_size);

// Empty where the run fits. Else what does not fit, and what would: fewer rows in a micro-batch,
// shorter ones, or a smaller model.
std::string MemoryVerdict(const RunConfig& config, const model::LanguageModel& model,
                          const PlanScene& scene);
// Weights, Adam and gradients, which are exact, against the memory: Error kUsage where not even
// they fit, which would end in the middle of a start. What only may not fit is a warning of rank 0.
void RequireMemory(const RunConfig& config, const model::LanguageModel& model,
                   const PlanScene& scene, int rank);

}  // namespace halflife::train
