// What a recipe will cost, without running it: `train --dry-run` and the first lines of every run.
#pragma once

#include <string>

#include "train/run_config.h"

namespace halflife::train {

struct MemoryPlan {  // bytes on one rank
  double main_and_adam = 0, gradients = 0, compute_copy = 0, activations = 0, loss = 0;
  double total() const { return main_and_adam + gradients + compute_copy + activations + loss; }
};
MemoryPlan PlanMemory(const RunConfig& config, const model::LanguageModel& model, int world_size);

// One line: "gla, 6 layers x 256, 5.1M parameters, 16 x 512 tokens a step on 2 ranks".
std::string PlanSummary(const RunConfig& config, const model::LanguageModel& model, int world_size);

// Several lines: the resolved config, parameters by part, memory a rank by part, tokens and FLOPs a
// step.
std::string PlanText(const RunConfig& config, const model::LanguageModel& model, int world_size);

}  // namespace halflife::train
