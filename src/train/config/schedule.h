// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>
#include <string>

namespace halflife::train {

struct ScheduleConfig {
  std::string kind = "cosine";  // cosine | linear | constant | wsd (warm-up, stable, decay)
  int64_t warmup_steps = 0;
  // wsd: length of the final linear decay; 0: a tenth of the run, at least one step.
  int64_t decay_steps = 0;
  double final_lr_ratio = 0.1;  // constant ignores it
  bool per_epoch = false;       // LearningRateFactorOfEpoch holds
};

// Factor of the peak learning rate for optimiser step `step` (0-based) of `total_steps`. Warm-up is
// linear and reaches 1 at step warmup_steps - 1; decays reach final_lr_ratio at the last step, if
// there is one after the warm-up. A run of a single step has the peak.
double LearningRateFactor(const ScheduleConfig& config, int64_t step, int64_t total_steps);

// The same for all steps of epoch `epoch` (0-based) of `max_epochs`, as PyTorch's CosineAnnealingLR
// and LinearLR give it when they are stepped once an epoch: the first epoch has the peak, and
// final_lr_ratio would be that of the epoch behind the last. Without warm-up.
double LearningRateFactorOfEpoch(const ScheduleConfig& config, int64_t epoch, int64_t max_epochs);

// Steps that a run of `total_steps` trains before its rate decays (warm-up included): a checkpoint
// of such a step can be continued with a longer schedule at the same rate. `total_steps` where the
// schedule is constant.
int64_t StepsBeforeDecay(const ScheduleConfig& config, int64_t total_steps);

// A sentence that says why the schedule does not fit a run of `total_steps`, and what to set: the
// warm-up does not end before the run does, or it leaves a wsd decay fewer steps than it has.
// Empty where the schedule fits.
std::string ScheduleWarning(const ScheduleConfig& config, int64_t total_steps);

}  // namespace halflife::train
