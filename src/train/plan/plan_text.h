// What a recipe will cost on the ranks at hand, without running it: `train --dry-run`.
#pragma once

#include <string>

#include "train/plan/memory_plan.h"

namespace halflife::train {

// Inputs of all steps; where the scene has no order, with every step whole.
int64_t TokensOfRun(const RunConfig& config, const PlanScene& scene);

// Several lines. The first two sum up: the model with its parameter count, and the memory of a rank
// with whether it fits. Then parameters by part, memory of a rank by part, tokens and FLOPs of a
// step, the whole run, and last the resolved config.
std::string PlanText(const RunConfig& config, const model::LanguageModel& model,
                     const PlanScene& scene);

}  // namespace halflife::train
