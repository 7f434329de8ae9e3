#include "cli/command_line/rank_zero_report.h"

#include <chrono>
#include <thread>

namespace halflife::cli {

void LetRankZeroReport(int rank, ExitCode code) {
  // Longer than mpirun needs to kill a rank that handles SIGTERM (a second), and longer than the
  // difference between the ranks' start times on a busy machine.
  constexpr auto kWait = std::chrono::seconds(5);
  const bool likely_on_all_ranks = code == ExitCode::kUsage || code == ExitCode::kData ||
                                   code == ExitCode::kEnvironment ||
                                   code == ExitCode::kNoUsableCheckpoint;
  if (rank != 0 && likely_on_all_ranks) std::this_thread::sleep_for(kWait);
}

}  // namespace halflife::cli
