// The last of a command: what it said has been written, or its exit code tells that it was not.
//
//   return EndOutput(Run(options));
#pragma once

#include "core/exit_code.h"

namespace halflife::cli {

// Flushes standard output. Where that failed (a full disk behind `> results.json`) a command that
// had gone well ends with kEnvironment; a reader that has closed its pipe, as `head` does, has had
// what it wanted.
ExitCode EndOutput(ExitCode code);

}  // namespace halflife::cli
