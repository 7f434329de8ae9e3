// What a recipe will cost on the ranks at hand, without running it: `train --dry-run`.
#pragma once

#include <string>

#include "train/plan/memory_plan.h"

namespace halflife::train {

// Inputs of all steps; where the scene has no order, with every step whole.
int64_t TokensOfRun(const RunConfig& config, const PlanScene& scene);

// Several lines: the resolved config, parameters by part, memory a rank by part, tokens and FLOPs a
// step, epochs.
std::string PlanText(const RunConfig& config, const model::LanguageModel& model,
                     const PlanScene& scene);

}  // namespace halflife::train
