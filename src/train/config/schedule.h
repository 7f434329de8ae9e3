// The learning rate as a pure function of the step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace halflife::train {

// A phase of a recipe. Rates are relative to optimizer.lr.
struct PhaseConfig {
  std::string name;
  int64_t steps = 0;             // Length in steps. 0: `share`.
  double share = 0;              // Length as a share of the run. 0, too: the rest of the run.
  std::optional<double> from;    // Absent: the `to` of the phase before, or 1 for the first phase.
  std::optional<double> to;      // Absent: `from`.
  std::string shape = "linear";  // linear | cosine | sqrt | exponential
};

struct ScheduleConfig {
  // cosine | linear | constant | wsd (warm-up, stable, decay) | phases
  std::string kind = "cosine";
  int64_t warmup_steps = 0;
  // wsd: length of the final decay in steps. 0: a tenth of the run, at least one step.
  int64_t decay_steps = 0;
  // wsd: the decay falls as 1 - x (linear) or as 1 - sqrt(x) (sqrt), x from 0 to 1. The latter is
  // of Haegele et al., 2024, "Scaling laws and compute-optimal training beyond fixed training
  // durations".
  std::string decay_shape = "linear";
  double final_lr_ratio = 0.1;           // Ignored by constant.
  bool per_epoch = false;                // Use LearningRateFactorOfEpoch.
  std::vector<PhaseConfig> phases = {};  // Only of the kind "phases".

  // Returns the phases as one line without their names, for example "100 steps from 0 to 1, the
  // rest, 0.1 of the run to 0 (sqrt)". Checkpoints compare it.
  std::string PhasesText() const;
};

// A phase of a run of known length: the steps [begin, end), 0-based.
struct Phase {
  std::string name;
  int64_t begin = 0, end = 0;
  double from = 1, to = 1;  // Factors of the peak rate. The last step of the phase has `to`.
  std::string shape = "linear";

  double FactorAt(int64_t step) const;
};

// Returns the phases of a run of `total_steps`, of any kind of schedule. If they end after the run,
// it is cut. If they end before it, the last rate stays.
std::vector<Phase> PhasesOf(const ScheduleConfig& config, int64_t total_steps);

// Returns the factor of the peak learning rate for optimizer step `step` (0-based) of
// `total_steps`: that of its phase. Warm-up is linear and reaches 1 at step warmup_steps - 1. A
// decay reaches final_lr_ratio at the last step, if any step follows the warm-up. A run of a single
// step uses the peak.
double LearningRateFactor(const ScheduleConfig& config, int64_t step, int64_t total_steps);

// Returns the factor for all steps of epoch `epoch` (0-based) of `max_epochs`, as PyTorch's
// CosineAnnealingLR and LinearLR compute it when they are stepped once per epoch. The first epoch
// has the peak rate, and final_lr_ratio would be reached in the epoch after the last. There is no
// warm-up.
double LearningRateFactorOfEpoch(const ScheduleConfig& config, int64_t epoch, int64_t max_epochs);

// Returns how many steps a run of `total_steps` trains before its rate decays, including warm-up. A
// checkpoint of such a step can be continued with a longer schedule at the same rate. Returns
// `total_steps` for a constant schedule.
int64_t StepsBeforeDecay(const ScheduleConfig& config, int64_t total_steps);

// Returns a sentence that says why the schedule does not fit a run of `total_steps`, and what to
// set. The reasons are a warm-up that does not end before the run, too few remaining steps for a
// wsd decay, and phases that end before or after the run. Returns an empty string if the schedule
// fits.
std::string ScheduleWarning(const ScheduleConfig& config, int64_t total_steps);

}  // namespace halflife::train
