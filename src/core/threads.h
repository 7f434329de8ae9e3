// Threads of our own. A system that gives none is nobody's fault of the program's.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

namespace halflife {
namespace internal {
[[noreturn]] void FailWithoutThread(const std::system_error& error);
}  // namespace internal

// Error kEnvironment where no thread is to be had: of a limit on threads, or of memory for a stack.
template <typename Thread = std::thread, typename Run>
Thread StartThread(Run&& run) {
  try {
    return Thread(std::forward<Run>(run));
  } catch (const std::system_error& error) {
    internal::FailWithoutThread(error);
  }
}

}  // namespace halflife
