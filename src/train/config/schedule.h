// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>
#include <string>

namespace halflife::train {

struct ScheduleConfig {
  std::string kind = "cosine";  // cosine | linear | constant | wsd (warm-up, stable, decay)
  int64_t warmup_steps = 0;
  // wsd: length of the final decay in steps. 0: a tenth of the run, at least one step.
  int64_t decay_steps = 0;
  // wsd: the decay falls as 1 - x (linear) or as 1 - sqrt(x) (sqrt), x from 0 to 1. The latter is
  // of Haegele et al., 2024, "Scaling laws and compute-optimal training beyond fixed training
  // durations".
  std::string decay_shape = "linear";
  double final_lr_ratio = 0.1;  // Ignored by constant.
  bool per_epoch = false;       // Use LearningRateFactorOfEpoch.
};

// Returns the factor of the peak learning rate for optimizer step `step` (0-based) of
// `total_steps`. Warm-up is linear and reaches 1 at step warmup_steps - 1. A decay reaches
// final_lr_ratio at the last step, if any step follows the warm-up. A run of a single step uses the
// peak.
double LearningRateFactor(const ScheduleConfig& config, int64_t step, int64_t total_steps);

// Returns the factor for all steps of epoch `epoch` (0-based) of `max_epochs`, as PyTorch's
// CosineAnnealingLR and LinearLR compute it when they are stepped once per epoch: the first epoch
// has the peak rate, and final_lr_ratio belongs to the epoch after the last. There is no warm-up.
double LearningRateFactorOfEpoch(const ScheduleConfig& config, int64_t epoch, int64_t max_epochs);

// Returns how many steps a run of `total_steps` trains before its rate decays, including warm-up. A
// checkpoint of such a step can be continued with a longer schedule at the same rate. Returns
// `total_steps` for a constant schedule.
int64_t StepsBeforeDecay(const ScheduleConfig& config, int64_t total_steps);

// Returns a sentence that says why the schedule does not fit a run of `total_steps`, and what to
// set. The reasons are a warm-up that does not end before the run, and too few remaining steps for
// a wsd decay. Returns an empty string if the schedule fits.
std::string ScheduleWarning(const ScheduleConfig& config, int64_t total_steps);

}  // namespace halflife::train
