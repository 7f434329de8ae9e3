// The end of the program: reports a failure to write the output as the exit code, and an error that
// all ranks have only once.
//
//   return EndOutput(Run(options));
#pragma once

#include "core/exit_code.h"

namespace halflife::cli {

// Flushes standard output. If that failed (for example, a full disk behind `> results.json`), a
// command that succeeded returns kEnvironment. A reader that closed its pipe early, such as `head`,
// is not an error.
ExitCode EndOutput(ExitCode code);

// Reports an error that all ranks have only once, without communication.
//
//   LetRankZeroReport(launcher.rank, error.code());
//   HL_ERROR("halflife", error.what());
//
// Errors of the command line, the recipe, the dataset and the machine are usually the same on all
// ranks. Rank 0 reports such an error at once, and its exit makes the launcher end the other ranks.
// On those this function waits some seconds first. It returns only if rank 0 does not have the
// error, so that an error of one rank is still reported. Other errors (crashes, lost ranks,
// timeouts) return at once.
void LetRankZeroReport(int rank, ExitCode code);

}  // namespace halflife::cli
