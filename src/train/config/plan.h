// What a recipe will cost, without running it: `train --dry-run` and the first lines of every run.
#pragma once

#include <string>

#include "data/dataset.h"
#include "train/config/run_config.h"

namespace halflife::train {

struct MemoryPlan {  // bytes on one rank
  double main_and_adam = 0, gradients = 0, compute_copy = 0, activations = 0, loss = 0;
  double total() const { return main_and_adam + gradients + compute_copy + activations + loss; }
};
MemoryPlan PlanMemory(const RunConfig& config, const model::LanguageModel& model, int world_size);

// One line: "gla, 6 layers x 256, 5.1M parameters, 16 x 512 tokens a step on 2 ranks".
std::string PlanSummary(const RunConfig& config, const model::LanguageModel& model, int world_size);

// What a plan is made for.
struct PlanScene {
  int world_size = 1;
  int ranks_of_device = 1;    // that share its memory
  uint64_t memory_bytes = 0;  // of the host, or of one GPU; 0: not known here
  int64_t train_tokens = 0;   // of the dataset; 0: not known
};
// Of this machine, whose `local_size` ranks share the host's memory, or have a GPU each.
PlanScene SceneHere(const RunConfig& config, int world_size, int local_size);

// Empty where the run fits. Else what does not fit, and what would: fewer rows in a micro-batch,
// shorter ones, or a smaller model.
std::string MemoryVerdict(const RunConfig& config, const model::LanguageModel& model,
                          const PlanScene& scene);
// Weights, Adam and gradients, which are exact, against the memory: Error kUsage where not even
// they fit, which would end in the middle of a start. What only may not fit is a warning of rank 0.
void RequireMemory(const RunConfig& config, const model::LanguageModel& model,
                   const PlanScene& scene, int rank);

// Error kUsage where the model does not take rows as long as data.seq_len, where the dataset's may
// hold several documents and a layer takes one a row, or where it has no split that eval.split
// names. `dataset` may be null: not known.
void RequireRows(const RunConfig& config, const model::LanguageModel& model,
                 const data::DatasetInfo* dataset);

// Gives a recipe what a plan needs, and no dataset has to be there (null): the vocabulary is the
// recipe's, else the dataset's, else the 32,000 that the sizes of models are usually given for.
// True where it had to be assumed. Error kUsage for impossible values (Validate).
bool CompleteForPlan(RunConfig& config, const data::DatasetInfo* dataset, int world_size);

// The config with every option that derives from others (a width from a ratio) at the value in
// force.
RunConfig WithDerivedOptions(RunConfig config);

// Several lines: the resolved config, parameters by part, memory a rank by part, tokens and FLOPs a
// step, epochs.
std::string PlanText(const RunConfig& config, const model::LanguageModel& model,
                     const PlanScene& scene);

}  // namespace halflife::train
