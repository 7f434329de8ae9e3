#include "core/heap.h"

#include <cstdlib>  // defines __GLIBC__, if anything does

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HALFLIFE_HEAP_IS_GLIBCS 1
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#endif

namespace halflife {
#ifdef HALFLIFE_HEAP_IS_GLIBCS
namespace {

void KeepFreedMemory() {
  // A block with its own mapping is unmapped when it is freed, and M_MMAP_THRESHOLD cannot exceed
  // 32 MiB.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);  // never return the end of the heap to the kernel
}

bool IsUnlimited(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

// True if reserved addresses that are never written to use no memory.
bool AddressesAreFree() {
  int overcommit = 2;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  return overcommit != 2 && IsUnlimited(RLIMIT_AS) && IsUnlimited(RLIMIT_DATA) &&
         std::getenv("MALLOC_PERTURB_") == nullptr;
}

// Allocates and frees the largest block so far. Once it is freed, the heap grows into its
// addresses.
void RequestHugePages() {
  constexpr uintptr_t kPage = 2 << 20;
  const size_t bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) / 4 * 3 *
                       static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const block = std::malloc(bytes);
  if (block == nullptr) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(block) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(block) + bytes) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  std::free(block);
}

}  // namespace

void PrepareHeap() {
  KeepFreedMemory();
  if (AddressesAreFree()) RequestHugePages();
}
#else
void PrepareHeap() {}
#endif

}  // namespace halflife
