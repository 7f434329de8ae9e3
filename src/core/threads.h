// Starts threads. Failure to start one is reported as an environment error (exit code 4), not as a
// bug.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "core/error.h"

namespace halflife {

// Throws Error kEnvironment if the thread cannot be started, because of a limit on threads or too
// little memory for its stack.
template <typename Thread = std::thread, typename Run>
Thread StartThread(Run&& run) {
  try {
    return Thread(std::forward<Run>(run));
  } catch (const std::system_error& error) {
    HL_FAIL(ExitCode::kEnvironment, "cannot start a thread: ", error.code().message(),
            ". Allow more threads (`ulimit -u`, the pids limit of a container) or more memory for "
            "the process (`ulimit -v`).");
  }
}

}  // namespace halflife
