// What a step whose loss or gradient is not finite means to the run.
#pragma once

#include <cstdint>

#include "ckpt/state.h"
#include "train/config/run_config.h"
#include "train/step/step.h"

namespace halflife::train {

// Counts what `result`, of the step with the 1-based number `step`, skipped. Error kNonFinite where
// train.on_nonfinite is 'stop', or where more than train.max_skips steps in a row were skipped.
void GuardNonFinite(const RunConfig& config, uint64_t step, const StepResult& result,
                    ckpt::GuardState& guard);

}  // namespace halflife::train
