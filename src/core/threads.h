// Starts threads. Failure to start one is reported as an environment error (exit code 4), not as a
// bug.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

namespace halflife {
namespace internal {
[[noreturn]] void FailWithoutThread(const std::system_error& error);
}  // namespace internal

// Throws Error kEnvironment if the thread cannot be started, because of a limit on threads or too
// little memory for its stack.
template <typename Thread = std::thread, typename Run>
Thread StartThread(Run&& run) {
  try {
    return Thread(std::forward<Run>(run));
  } catch (const std::system_error& error) {
    internal::FailWithoutThread(error);
  }
}

}  // namespace halflife
