// When a run stops before its last step: on a signal to any rank, or while the time limit still
// leaves room for a save. A rank's own requests travel in the step's scalars, and the sums decide,
// so that all ranks stop after the same step.
//
//   const StepResult result = runner.Run(step, num_updates, policy.OwnRequests(clock.Seconds()));
//   policy.NoteStep(result.seconds);
//   if (const auto code = StopPolicy::CodeOf(result.scalars)) ...   // save, and end with this code
#pragma once

#include <optional>

#include "core/exit_code.h"
#include "train/step/step_scalars.h"

namespace halflife::train {

class StopPolicy {
 public:
  // `time_limit_s`: 0 for none.
  explicit StopPolicy(double time_limit_s);

  // What a step, a validation and a save took: the estimate of what lies ahead is made of them.
  void NoteStep(double seconds);
  void NoteValidation(double seconds) { last_validation_s_ = seconds; }
  void NoteSave(double seconds) { last_save_s_ = seconds; }

  // Another step may not leave enough of the limit for the save after it.
  bool TimeIsUp(double elapsed_s) const;

  // This rank's flags for the next step: its signals (a request to save is taken once) and the time
  // limit.
  StepScalars OwnRequests(double elapsed_s) const;

  // What the reduced requests ask for: kInterrupted (INT on some rank), kRequeue (USR1, TERM or the
  // time limit), or to go on.
  static std::optional<ExitCode> CodeOf(const StepScalars& reduced);

 private:
  double time_limit_s_;
  double longest_step_s_ = 0, last_validation_s_ = 0, last_save_s_ = 0;
};

}  // namespace halflife::train
