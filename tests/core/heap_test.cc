// Large allocations do not fault anew once freed memory is kept.
#include "core/heap.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace halflife {
namespace {

long Faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

long FaultsOfWriting(size_t bytes) {
  const long before = Faults();
  void* const block = std::malloc(bytes);
  std::memset(block, 1, bytes);
  asm volatile("" : : "r"(block) : "memory");  // or the writes would be left out
  std::free(block);
  return Faults() - before;
}

TEST(KeepFreedMemory, FaultsOnceForEachPage) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer brings its own allocator";
#endif
  constexpr size_t kBytes = size_t{64} << 20;  // more than glibc ever keeps by itself
  const long pages = static_cast<long>(kBytes) / sysconf(_SC_PAGESIZE);
  KeepFreedMemory();
  FaultsOfWriting(kBytes);
  EXPECT_LT(FaultsOfWriting(kBytes), pages / 100);
}

}  // namespace
}  // namespace halflife
