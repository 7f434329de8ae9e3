// Philox4x32-10 for many counters at once. Words of the same index are adjacent, so that loops over
// them vectorize. The results are those of core/philox.h.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "kernels/common/cpu/math.h"

namespace halflife::kernels::cpu {

template <int64_t kCount>
struct PhiloxLanes {
  uint32_t x[4][kCount];

  HL_INLINE void SetCounter(int64_t lane, uint64_t sample, uint32_t position, uint32_t block) {
    x[0][lane] = static_cast<uint32_t>(sample);
    x[1][lane] = static_cast<uint32_t>(sample >> 32);
    x[2][lane] = position;
    x[3][lane] = block;
  }
  // Replaces the counters by the random words.
  HL_INLINE void Draw(RandomKey key) {
    for (int round = 0; round < 10; ++round) {
#pragma omp simd
      for (int64_t lane = 0; lane < kCount; ++lane) {
        const uint64_t p0 = 0xD2511F53ull * x[0][lane];
        const uint64_t p1 = 0xCD9E8D57ull * x[2][lane];
        x[0][lane] = static_cast<uint32_t>(p1 >> 32) ^ x[1][lane] ^ key.k0;
        x[1][lane] = static_cast<uint32_t>(p1);
        x[2][lane] = static_cast<uint32_t>(p0 >> 32) ^ x[3][lane] ^ key.k1;
        x[3][lane] = static_cast<uint32_t>(p0);
      }
      key.k0 += 0x9E3779B9u;
      key.k1 += 0xBB67AE85u;
    }
  }
};

}  // namespace halflife::kernels::cpu
