// A process that may have little more memory than it has, as under `ulimit -v`. For the child of a
// death test: it cannot be taken back.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace halflife::test {

inline void LimitAddresses(uint64_t more_bytes) {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + more_bytes;
  const rlimit limit = {bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
}

}  // namespace halflife::test
