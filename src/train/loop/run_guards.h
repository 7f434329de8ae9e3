// Checks that protect a run: steps that are not finite, steps without a target, and a learning rate
// that jumps on resume.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/state.h"
#include "ckpt/step_dir.h"
#include "data/sample_order.h"
#include "train/config/run_config.h"
#include "train/step/step.h"

namespace halflife::train {

// Reacts to a step whose loss or gradient is not finite, or whose loss is a spike. Counts the
// skipped update of `result`, the result of step `step` (1-based), and remembers losses for
// LargestLoss. Throws Error kNonFinite if train.on_nonfinite is 'stop' (not for a spike), or if
// more than train.max_skips consecutive steps were skipped. With train.max_rollbacks, a spike is an
// error only if RollbackIsDue after that many rollbacks.
void GuardNonFinite(const RunConfig& config, uint64_t step, const StepResult& result,
                    ckpt::GuardState& guard);

// Returns whether the run goes back to a checkpoint after `step`: the step is a spike, and
// train.rollback_spikes of the last train.rollback_window steps were, or more than train.max_skips
// in a row. Always false if train.max_rollbacks is 0.
bool RollbackIsDue(const RunConfig& config, uint64_t step, const ckpt::GuardState& guard);
// Returns the newest published one of `steps` (newest first) that was saved before the spikes of
// `guard`, or else the oldest. Returns nullopt if there are none.
std::optional<uint64_t> StepToGoBackTo(const std::vector<ckpt::StepDir>& steps,
                                       const ckpt::GuardState& guard);
// Returns a sentence if the run keeps no checkpoint from before train.rollback_window, in which
// spikes are counted. Otherwise returns an empty string.
std::string RollbackWarning(const RunConfig& config);

// Throws Error kUsage if the run leaves out the data of steps, and a setting finds the epoch from
// the number of steps: the data would be ahead of that epoch. `skip_data` steps are left out by the
// option, and `skipped_before` by an earlier attempt.
void RequireStepsAreNotEpochs(const RunConfig& config, uint64_t skip_data, uint64_t skipped_before);

// The largest loss that train.spike_sigmas accepts: the mean of the last kSpikeWindow losses plus
// that many standard deviations. Infinite if the guard is off or fewer losses are known.
constexpr size_t kSpikeWindow = 128;
double LargestLoss(const RunConfig& config, const ckpt::GuardState& guard);

// Counts validations without a new best value of config.ckpt.validation_metric(), in `metrics` (of
// the last validation), which checkpoints contain. Throws Error kUsage if there is no such metric.
void NotePatience(const RunConfig& config, std::map<std::string, double>& metrics);
// Returns whether train.patience is used up.
bool OutOfPatience(const RunConfig& config, const std::map<std::string, double>& metrics);

// Reacts to steps without a target: one such step is skipped, a dataset of them ends the run. A row
// may have no target: a document of one token, no answer within the row, or no token chosen for
// masking. All ranks know the sum, so all decide equally.
class TargetGuard {
 public:
  TargetGuard(const RunConfig& config, const data::SampleOrder& order);

  // Records `result`, the result of step `step` (1-based). Throws Error kData after max_in_a_row()
  // consecutive steps without a target.
  void NoteStep(int64_t step, const StepResult& result);

  // Returns the number of consecutive steps without a target after which the run ends. An epoch
  // includes every row. With fewer than 100 steps, chance may have hidden no token. After 1000
  // shuffled steps without a target, fewer than one in a hundred steps of the dataset can have one
  // (0.99^1000 = 4e-5), which is not enough to train on. Never more than the steps of the run.
  int64_t max_in_a_row() const { return max_in_a_row_; }

 private:
  const RunConfig& config_;
  const int64_t max_in_a_row_;
  int64_t in_a_row_ = 0;
};

// The learning rates around a resume, which show whether a run continues at the learning rate of
// its checkpoint. The rate jumps if the run was extended: a schedule that had decayed is then read
// at an earlier point.
struct ResumedRate {
  int64_t step = 0;         // Steps that the checkpoint has done, at least 1.
  double last = 0;          // Learning rate of the checkpoint's last step.
  double planned = 0;       // Rate of this run's schedule for that step.
  double next = 0;          // Rate of this run's schedule for the next step.
  bool own = false;         // The checkpoint is in the run's own folder.
  bool warming_up = false;  // The next step is in the warm-up of this run's schedule.
  // If the checkpoint is in a wsd decay: the newest step in the run's folder from before it.
  std::optional<uint64_t> before_decay = {};
};

// Returns an empty string if the rate continues: the change from `last` to `next` is a change of
// the schedule itself, or within 1 % of the larger rate. Otherwise returns one line with both rates
// and the options that avoid the change. `kind` and `total_steps` are those of this run's schedule.
std::string RateJumpWarning(const ResumedRate& rate, const std::string& kind, int64_t total_steps);

// Returns the newest of `steps` (newest first) that a wsd run had trained before its decay began.
// `trajectory` contains the fields of a checkpoint's config. Returns nullopt if that run used
// another schedule, or if the checkpoint of `step` is not in the decay.
std::optional<uint64_t> NewestBeforeDecay(const std::map<std::string, std::string>& trajectory,
                                          uint64_t step, const std::vector<ckpt::StepDir>& steps);

}  // namespace halflife::train
