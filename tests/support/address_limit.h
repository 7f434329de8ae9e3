// A process that may have little more memory than it has, as under `ulimit -v`. For the child of a
// death test, as it cannot be taken back:
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

// Exits with the code of the Error that `action` throws, after its message, or with 0.
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
