// The last step of a command: reports a failure to write its output as the exit code.
//
//   return EndOutput(Run(options));
#pragma once

#include "core/exit_code.h"

namespace halflife::cli {

// Flushes standard output. If that failed (for example, a full disk behind `> results.json`), a
// command that succeeded returns kEnvironment. A reader that closed its pipe early, such as `head`,
// is not an error.
ExitCode EndOutput(ExitCode code);

}  // namespace halflife::cli
