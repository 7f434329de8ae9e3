// The cost of a recipe on the current ranks, without running it: `train --dry-run`.
#pragma once

#include <string>

#include "train/plan/memory_plan.h"

namespace halflife::train {

// Number of input tokens of all steps. Without an order in the scene, every step counts as a whole
// one.
int64_t TokensOfRun(const RunConfig& config, const PlanScene& scene);

// Returns several lines. The first two are a summary: the model with its parameter count, and the
// memory of a rank and whether it fits. Then follow parameters by part, memory of a rank by part,
// tokens and FLOPs of a step, the whole run, and the resolved config.
std::string PlanText(const RunConfig& config, const model::LanguageModel& model,
                     const PlanScene& scene);

}  // namespace halflife::train
