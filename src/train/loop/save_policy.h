// When a run saves, and whether it goes on after a save that failed.
//
//   if (policy.IsDue(step, requested)) ...
//   policy.NoteSaved(step);                          // or, of a failed one:
//   if (!policy.GoesOnAfter(error.code())) throw;
#pragma once

#include <cstdint>
#include <string>

#include "core/exit_code.h"

namespace halflife::train {

class SavePolicy {
 public:
  // `every`: ckpt.every, 0 for none but the requested ones. `on_error`: ckpt.on_error.
  SavePolicy(int64_t every, std::string on_error);

  // After `step`: the recipe's interval, or a request (SIGUSR2).
  bool IsDue(int64_t step, bool requested) const;

  // The run's own folder holds a checkpoint of `step`.
  void NoteSaved(int64_t step);
  bool IsSaved(int64_t step) const { return step == saved_step_; }

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
};

}  // namespace halflife::train
