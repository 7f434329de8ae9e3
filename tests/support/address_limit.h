// Limits the address space of a process, as `ulimit -v` does, so that large allocations fail. The
// limit cannot be undone, so use it only in the child of a death test:
//
//   EXPECT_EXIT(ExitUnderAddressLimit(0, [] { Run(); }), testing::ExitedWithCode(4), "memory");
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "core/error.h"

namespace halflife::test {

// Runs `action`. If it throws an Error, prints the message and exits with its code. Otherwise exits
// with 0.
[[noreturn]] inline void ExitUnderAddressLimit(uint64_t more_bytes,
                                               const std::function<void()>& action) {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + more_bytes;
  const rlimit limit = {bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
  try {
    action();
  } catch (const Error& error) {
    std::fputs(error.message().c_str(), stderr);
    std::_Exit(static_cast<int>(error.code()));
  }
  std::_Exit(0);
}

}  // namespace halflife::test
