// Signals as flags: USR1, TERM and, unless it is ignored, HUP ask for "save and requeue" (exit 75),
// USR2 for "save and go on",
// INT for "save and stop" (exit 130); a second INT ends the process at once. Handlers only set
// atomics, and the same signal may arrive many times. The flags travel in the step's scalars, so a
// signal on any single rank stops all ranks at the same step.
//
//   StopFlags::InstallHandlers();   // before MPI: the default action of USR1 kills
#pragma once

namespace halflife::train {

class StopFlags {
 public:
  static void InstallHandlers();
  static bool requeue();
  static bool stop();
  static bool TakeSave();  // true once per request
};

}  // namespace halflife::train
