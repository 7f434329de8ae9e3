// Reports an error that all ranks have only once, without communication.
//
//   LetRankZeroReport(launcher.rank, error.code());
//   HL_ERROR("halflife", error.what());
#pragma once

#include "core/exit_code.h"

namespace halflife::cli {

// Errors of the command line, the recipe, the dataset and the machine are usually the same on all
// ranks. Rank 0 reports such an error at once, and its exit makes the launcher end the other ranks.
// On those this function waits some seconds first. It returns only if rank 0 does not have the
// error, so that an error of one rank is still reported. Other errors (crashes, lost ranks,
// timeouts) return at once.
void LetRankZeroReport(int rank, ExitCode code);

}  // namespace halflife::cli
