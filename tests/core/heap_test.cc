// After PrepareHeap, large allocations reuse freed memory without new page faults, and use pages of
// 2 MiB if the kernel has any.
#include "core/host.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

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
  asm volatile("" : : "r"(block) : "memory");  // Otherwise the compiler removes the writes.
  std::free(block);
  return Faults() - before;
}

TEST(PrepareHeap, FaultsOnceForEachPage) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer brings its own allocator";
#endif
  constexpr size_t kBytes = size_t{64} << 20;  // More than glibc keeps by default.
  const long pages = static_cast<long>(kBytes) / sysconf(_SC_PAGESIZE);
  PrepareHeap();
  FaultsOfWriting(kBytes);
  EXPECT_LT(FaultsOfWriting(kBytes), pages / 100);
}

bool KernelGivesHugePages() {
  std::string line;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), line);
  return line.find("[always]") != std::string::npos || line.find("[madvise]") != std::string::npos;
}

// Returns the memory of this process in pages of 2 MiB, in KiB.
int64_t HugeKiB() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string name; rollup >> name;)
    if (int64_t kib = 0; name == "AnonHugePages:" && rollup >> kib) return kib;
  return 0;
}

TEST(PrepareHeap, TakesPagesOf2MiB) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer brings its own allocator";
#endif
  if (!KernelGivesHugePages()) GTEST_SKIP() << "transparent huge pages are off";
  constexpr size_t kBytes = size_t{128} << 20;
  PrepareHeap();
  void* const block = std::malloc(kBytes);
  std::memset(block, 1, kBytes);
  asm volatile("" : : "r"(block) : "memory");
  const int64_t huge = HugeKiB();
  std::free(block);
  // Half of it, because the kernel may have too few free pages if memory is fragmented.
  EXPECT_GT(huge, static_cast<int64_t>(kBytes >> 10) / 2);
}

// Only address space is reserved in advance. Memory is used when it is written.
TEST(PrepareHeap, TakesNoMemoryInAdvance) {
  rusage usage{};
  PrepareHeap();
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 1 << 20);  // KiB
}

}  // namespace
}  // namespace halflife
