// When a run saves, and whether it continues after a failed save.
//
//   if (policy.IsDue(step, requested)) ...
//   policy.NoteSaved(step);                          // If the save failed instead:
//   if (!policy.GoesOnAfter(error.code())) throw;
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "core/exit_code.h"
#include "train/config/run_config.h"

namespace halflife::train {

class SavePolicy {
 public:
  explicit SavePolicy(const SaveConfig& config);

  // Returns whether to save after `step`. Reasons: the recipe's interval, a validation with the
  // best metric so far if ckpt.keep_best names one, or a request (SIGUSR2).
  bool IsDue(int64_t step, bool requested) const;

  // Records the metrics of a validation after `step`.
  void NoteValidation(int64_t step, const std::map<std::string, double>& metrics);
  // Adds the best value to a checkpoint's metrics, as "best_val_loss". A resumed run continues from
  // it.
  void AddBest(std::map<std::string, double>& metrics) const;
  // Removes the values that AddBest added, for any ckpt.keep_best, and uses the one of this policy.
  // `own`: the checkpoint is in the run's own folder, the only place where its best step can be
  // kept.
  void TakeBest(std::map<std::string, double>& metrics, bool own);

  // Records that the run's own folder contains a checkpoint of `step`.
  void NoteSaved(int64_t step);
  bool IsSaved(int64_t step) const { return step == saved_step_; }
  int64_t saved_step() const { return saved_step_; }  // The newest saved step. -1: none.

  // Counts a failed save. Returns true if the storage refused the save, the recipe says "warn" and
  // the previous save did not fail: the older checkpoints are unchanged. A second consecutive
  // failure would leave the run unsaved for two intervals. Other errors are not storage failures.
  bool GoesOnAfter(ExitCode failure);

 private:
  int64_t every_;
  std::string on_error_;
  int64_t saved_step_ = -1;
  int failed_in_a_row_ = 0;
  std::string metric_;  // The validation metric whose lowest value is kept. Empty: none.
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  double best_ = kNone;
  double saved_best_ = kNone;  // The value to restore in best_ after a failed save.
  int64_t best_step_ = -1;
};

}  // namespace halflife::train
