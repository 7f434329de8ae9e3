// The memory that a rank of a run needs, by part. Every start checks it before it allocates. It
// also begins a plan.
//
//   const MemoryPlan plan = PlanMemory(config, model, /*world_size=*/8);
//   RequireMemory(config, model, CurrentTarget(config, 8, /*local_size=*/8), rank);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/sample_order.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "train/config/run_config.h"

namespace halflife::train {

// Bytes on one rank.
// - Exact except for padding: main_and_optimizer, gradients, compute_copy, frozen, gathered,
//   saved_copy, pinned_staging, and workspace if no document ends inside a row.
// - Upper bounds: loss, states.
// - Estimates: the others.
struct MemoryPlan {
  double main_and_optimizer = 0, gradients = 0, compute_copy = 0;
  // With LoRA: the model's weights, which have neither gradients nor states, and W0 of the targets.
  double frozen = 0;
  double gathered = 0;  // With ZeRO stage 3: slots of the weights of whole layers.
  double activations = 0, loss = 0;
  // Largest workspace of a layer's kernel on a GPU (ModelCost::WorkspaceBytes).
  double workspace = 0;
  // Copy that a background save writes. For a rank on a GPU, it is on the host.
  double saved_copy = 0;
  // Largest buffers of an optimizer that updates whole matrices (MatrixExchange).
  double matrices = 0;
  // With parallel.grad_reduce "ordered" on GPUs: the shares of the largest bucket's part.
  double shares = 0;
  double states = 0;  // States before this rank's slices of rows, stored until backward.
  // Only for a cluster (cluster_plan.h), otherwise 0. exchange: messages between the slices of
  // rows, the largest sent and received. libraries: buffers of NCCL and the driver's context.
  // margin: memory lost in allocators.
  double exchange = 0, libraries = 0, margin = 0;
  double total() const {
    return main_and_optimizer + gradients + compute_copy + frozen + gathered + activations + loss +
           workspace + saved_copy + matrices + shares + states + exchange + libraries + margin;
  }
  double pinned_staging = 0;  // Host memory of background saves from a GPU. Not part of total().
};
// A plan for a GPU uses the limits of the first GPU of this process, or of an H100 if it has none.
MemoryPlan PlanMemory(const RunConfig& config, const model::LanguageModel& model, int world_size);
MemoryPlan PlanMemory(const RunConfig& config, const model::LanguageModel& model, int world_size,
                      const kernels::DeviceLimits& gpu);

// The machine and dataset that a plan is made for.
struct PlanTarget {
  int world_size = 1;
  int ranks_of_device = 1;    // Number of ranks that share the memory of the device.
  uint64_t memory_bytes = 0;  // Memory of the host, or of one GPU. 0: unknown.
  int64_t train_tokens = 0;   // Tokens in the training split. 0: unknown.
  // Order of the dataset's rows. Absent: unknown, and every step counts as a whole one.
  std::optional<data::SampleOrder> order = {};
  bool assumed_vocabulary = false;  // CompleteForPlan assumed the vocabulary.
};
// Returns the target of this machine. Its `local_size` ranks share the host's memory, or have one
// GPU each.
PlanTarget CurrentTarget(const RunConfig& config, int world_size, int local_size);

// Returns an empty string if the run fits. Otherwise says what does not fit and what would: fewer
// rows per micro-batch, shorter rows, or a smaller model.
std::string MemoryVerdict(const RunConfig& config, const model::LanguageModel& model,
                          const PlanTarget& target);
// Checks the exact part (weights, optimizer and gradients) against the memory: Error kUsage if it
// does not fit, because the start would fail. If only the estimated total does not fit, rank 0 logs
// a warning.
void RequireMemory(const RunConfig& config, const model::LanguageModel& model,
                   const PlanTarget& target, int rank);

// Returns the number of input tokens of all steps. Without an order in the target, every step
// counts as a whole one.
int64_t TokensOfRun(const RunConfig& config, const PlanTarget& target);

// Returns the cost of a recipe on the current ranks, without running it, for `train --dry-run`:
// several lines. The first two are a summary: the model with its parameter count, and the
// memory of a rank and whether it fits. Then follow parameters by part, memory of a rank by part,
// tokens and FLOPs of a step, the whole run, and the resolved config.
std::string PlanText(const RunConfig& config, const model::LanguageModel& model,
                     const PlanTarget& target);

}  // namespace halflife::train
