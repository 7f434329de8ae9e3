#include <algorithm>

#include "kernels/cpu/vectorised.h"
#include "kernels/dropout/args.h"

namespace halflife::kernels::cpu {
namespace {

// Draws of kLanes counters at a time, the words of one kind side by side: a loop over them
// vectorises.
constexpr int64_t kLanes = 64;
struct Words {
  uint32_t x[4][kLanes];
};

// Philox4x32-10 of the counters (sample, position, first block + lane), as Draw of core/philox.h.
HL_INLINE void DrawLanes(RandomKey key, uint64_t sample, uint32_t position, uint32_t first_block,
                         Words& words) {
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    words.x[0][lane] = static_cast<uint32_t>(sample);
    words.x[1][lane] = static_cast<uint32_t>(sample >> 32);
    words.x[2][lane] = position;
    words.x[3][lane] = first_block + static_cast<uint32_t>(lane);
  }
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t p0 = 0xD2511F53ull * words.x[0][lane];
      const uint64_t p1 = 0xCD9E8D57ull * words.x[2][lane];
      words.x[0][lane] = static_cast<uint32_t>(p1 >> 32) ^ words.x[1][lane] ^ key.k0;
      words.x[1][lane] = static_cast<uint32_t>(p1);
      words.x[2][lane] = static_cast<uint32_t>(p0 >> 32) ^ words.x[3][lane] ^ key.k1;
      words.x[3][lane] = static_cast<uint32_t>(p0);
    }
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
}

template <typename T>
HL_INLINE void DropLoop(const DropoutArgs<T>& args, int64_t begin, int64_t end) {
  Words words;
  float factor[4 * kLanes];
  for (int64_t token = begin; token < end; ++token) {
    const uint64_t sample = args.samples[token / args.seq_len];
    const auto position = static_cast<uint32_t>(args.first_position + token % args.seq_len);
    for (int64_t channel = 0; channel < args.dim; channel += 4 * kLanes) {
      DrawLanes(args.key, sample, position, static_cast<uint32_t>(channel / 4), words);
      for (int64_t lane = 0; lane < kLanes; ++lane)
        for (int64_t i = 0; i < 4; ++i)
          factor[4 * lane + i] = (words.x[i][lane] >> 8) < args.threshold ? 0.0f : args.scale;
      const T* x = args.x + token * args.dim + channel;
      T* out = args.out + token * args.dim + channel;
      const int64_t count = std::min(4 * kLanes, args.dim - channel);
      // a choice, not a product: a dropped infinity is zero too
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        out[i] = Narrow<T>(factor[i] == 0.0f ? 0.0f : Widen(x[i]) * factor[i]);
    }
  }
}

template <typename T>
void Drop(const DropoutArgs<T>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { DropLoop(args, begin, end); });
}

}  // namespace

void Dropout(const DropoutArgs<float>& args, int64_t begin, int64_t end) { Drop(args, begin, end); }
void Dropout(const DropoutArgs<Bf16>& args, int64_t begin, int64_t end) { Drop(args, begin, end); }

}  // namespace halflife::kernels::cpu
