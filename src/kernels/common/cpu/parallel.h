// Runs independent parts of a kernel's work on the machine's threads. Each thread has its own
// scratch memory.
//
//   Parallel("decay attention", num_states, scratch_bytes, [&](int64_t i, void* scratch) { ... });
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "core/error.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace halflife::kernels::cpu {

// Flushes subnormal numbers to zero in this thread and ignores the caller's setting. Strong decays
// produce subnormal products, on which every operation is executed by slow microcode.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  FlushSubnormals() {}
#endif
};

struct Free {
  void operator()(void* memory) const noexcept { std::free(memory); }
};

// Calls run(index, scratch) for every index. Each thread has its own scratch memory.
template <typename Run>
void Parallel(const char* kernel, int64_t count, size_t scratch_bytes, Run run) {
  if (count <= 0) return;
  const int num_threads =
      static_cast<int>(std::min<int64_t>(count, std::max(1, omp_get_max_threads())));
  const size_t stride = (scratch_bytes + 4095) / 4096 * 4096 + 4096;
  const std::unique_ptr<void, Free> scratch(std::aligned_alloc(4096, stride * num_threads));
  HL_CHECK_AS(ExitCode::kEnvironment, scratch != nullptr, kernel, ": cannot allocate ",
              stride * num_threads, " bytes of scratch memory. Use fewer threads.");
  auto* base = static_cast<std::byte*>(scratch.get());
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads)
  for (int64_t i = 0; i < count; ++i) {
    const FlushSubnormals flush;
    run(i, base + stride * omp_get_thread_num());
  }
}

}  // namespace halflife::kernels::cpu
