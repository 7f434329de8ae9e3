// When a run stops before its last step: after a signal to any rank, or when the time limit leaves
// just enough time for a save. A rank's own requests travel in the step's scalars. Their sums
// decide, so all ranks stop after the same step.
//
//   const StepResult result = runner.Run(step, num_updates, policy.OwnRequests(clock.Seconds()));
//   policy.NoteStep(result.seconds);
//   if (const auto code = StopPolicy::CodeOf(result.scalars)) ...   // Save and exit.
#pragma once

#include <optional>

#include "core/exit_code.h"
#include "train/step/step_scalars.h"

namespace halflife::train {

// Signals as flags:
// - USR1, TERM and, unless it is ignored, HUP request "save and requeue" (exit 75).
// - USR2 requests "save and continue".
// - INT requests "save and stop" (exit 130). A second INT ends the process at once.
// Handlers only set atomics, and the same signal may arrive many times. The flags travel in the
// step's scalars, so a signal to any single rank stops all ranks at the same step.
//
//   StopFlags::InstallHandlers();   // Before MPI: by default, USR1 kills.
class StopFlags {
 public:
  static void InstallHandlers();
  static bool requeue();
  static bool stop();
  static bool TakeSave();  // Returns true once per request.
};

// Estimates the remaining work, and combines the requests of all ranks.
class StopPolicy {
 public:
  // `time_limit_s`: 0 for no limit.
  explicit StopPolicy(double time_limit_s);

  // Record the duration of a step, a validation and a save, which estimate the remaining work.
  void NoteStep(double seconds);
  void NoteValidation(double seconds) { last_validation_s_ = seconds; }
  void NoteSave(double seconds) { last_save_s_ = seconds; }

  // Returns true if another step may not leave enough time for the save after it.
  bool TimeIsUp(double elapsed_s) const;

  // Returns this rank's flags for the next step: its signals (a request to save is returned once)
  // and the time limit.
  StepScalars OwnRequests(double elapsed_s) const;

  // Returns the exit code that the reduced requests ask for: kInterrupted (INT on some rank),
  // kRequeue (USR1, TERM or the time limit), or nullopt to continue.
  static std::optional<ExitCode> CodeOf(const StepScalars& reduced);

 private:
  double time_limit_s_;
  double longest_step_s_ = 0, last_validation_s_ = 0, last_save_s_ = 0;
};

}  // namespace halflife::train
