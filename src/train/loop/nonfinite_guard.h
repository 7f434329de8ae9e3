// How a run reacts to a step whose loss or gradient is not finite.
#pragma once

#include <cstdint>

#include "ckpt/state.h"
#include "train/config/run_config.h"
#include "train/step/step.h"

namespace halflife::train {

// Counts the skipped update of `result`, the result of step `step` (1-based). Error kNonFinite if
// train.on_nonfinite is 'stop', or if more than train.max_skips consecutive steps were skipped.
void GuardNonFinite(const RunConfig& config, uint64_t step, const StepResult& result,
                    ckpt::GuardState& guard);

}  // namespace halflife::train
