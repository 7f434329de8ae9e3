#include "core/heap.h"

#include <malloc.h>

namespace halflife {

void KeepFreedMemory() {
#ifdef __GLIBC__
  // a mapping of its own is unmapped when freed, and M_MMAP_THRESHOLD goes no higher than 32 MiB
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);  // never give back the end of the heap
#endif
}

}  // namespace halflife
