// When a run saves, and whether it goes on after a save that failed.
//
//   if (policy.IsDue(step, requested)) ...
//   policy.NoteSaved(step);                          // or, of a failed one:
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

  // After `step`: the recipe's interval, a validation whose metric is the best so far where
  // ckpt.keep_best names one, or a request (SIGUSR2).
  bool IsDue(int64_t step, bool requested) const;

  // What a validation after `step` has found.
  void NoteValidation(int64_t step, const std::map<std::string, double>& metrics);
  // The best value travels with a checkpoint, as "best_val_loss": a resumed run goes on from it.
  void AddBest(std::map<std::string, double>& metrics) const;
  // Takes what AddBest added, whichever ckpt.keep_best it was added for. `own`: the checkpoint is
  // in the run's own folder, where alone its best step can be kept.
  void TakeBest(std::map<std::string, double>& metrics, bool own);

  // The run's own folder holds a checkpoint of `step`.
  void NoteSaved(int64_t step);
  bool IsSaved(int64_t step) const { return step == saved_step_; }
  int64_t saved_step() const { return saved_step_; }  // the newest; -1: none

  // Counts a failed save. The run outlives one that the storage refused, where the recipe says
  // "warn" and the save before it did not fail: the older checkpoints are untouched. A second
  // failure in a row would leave the run unsaved for two intervals, and any other error is no
  // matter of storage.
  bool GoesOnAfter(ExitCode failure);

 private:
  int64_t every_;
  std::string on_error_;
  int64_t saved_step_ = -1;
  int failed_in_a_row_ = 0;
  std::string metric_;  // a validation's, of which the lowest is kept; empty: none
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  double best_ = kNone;
  double saved_best_ = kNone;  // what best_ is again after a save that failed
  int64_t best_step_ = -1;
};

}  // namespace halflife::train
