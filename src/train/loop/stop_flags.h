// Signals as flags:
// - USR1, TERM and, unless it is ignored, HUP request "save and requeue" (exit 75).
// - USR2 requests "save and continue".
// - INT requests "save and stop" (exit 130). A second INT ends the process at once.
// Handlers only set atomics, and the same signal may arrive many times. The flags travel in the
// step's scalars, so a signal to any single rank stops all ranks at the same step.
//
//   StopFlags::InstallHandlers();   // Before MPI: by default, USR1 kills.
#pragma once

namespace halflife::train {

class StopFlags {
 public:
  static void InstallHandlers();
  static bool requeue();
  static bool stop();
  static bool TakeSave();  // Returns true once per request.
};

}  // namespace halflife::train
