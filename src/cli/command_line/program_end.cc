#include "cli/command_line/program_end.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <thread>

#include "core/log.h"

namespace halflife::cli {

ExitCode EndOutput(ExitCode code) {
  std::cout.flush();
  if (std::cout || code != ExitCode::kFinished) return code;
  pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) return code;
  HL_ERROR("halflife", "cannot write to standard output. Check whether its disk is full.");
  return ExitCode::kEnvironment;
}

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
