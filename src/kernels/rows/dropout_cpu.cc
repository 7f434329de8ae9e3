#include <algorithm>

#include "kernels/common/cpu/philox_lanes.h"
#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/dropout_args.h"

namespace halflife::kernels::cpu {
namespace {

// Number of counters that are drawn at a time, each for four channels: a part of a wide token, or
// all of several narrow ones.
constexpr int64_t kLanes = 64;

// Selects instead of multiplying, so that a dropped infinity becomes zero.
template <typename T>
HL_INLINE void Scale(const T* x, const float* factor, T* out, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i)
    out[i] = Narrow<T>(factor[i] == 0.0f ? 0.0f : Widen(x[i]) * factor[i]);
}

template <typename T>
HL_INLINE void DropLoop(const DropoutArgs<T>& args, int64_t begin, int64_t end) {
  const int64_t counters = (args.dim + 3) / 4;  // per token
  const int64_t width = std::min(counters, kLanes), most_tokens = kLanes / width;
  PhiloxLanes<kLanes> words = {};
  float factor[4 * kLanes];
  for (int64_t first = begin; first < end; first += most_tokens) {
    const int64_t num_tokens = std::min(most_tokens, end - first);
    for (int64_t counter = 0; counter < counters; counter += width) {
      for (int64_t t = 0; t < num_tokens; ++t) {
        const uint64_t sample = args.samples[(first + t) / args.seq_len];
        const int64_t position = args.first_position + (first + t) % args.seq_len;
        for (int64_t i = 0; i < width; ++i)
          words.SetCounter(t * width + i, sample, static_cast<uint32_t>(position),
                           static_cast<uint32_t>(counter + i));
      }
      words.Draw(args.key);
      for (int64_t lane = 0; lane < kLanes; ++lane)
        for (int64_t i = 0; i < 4; ++i)
          factor[4 * lane + i] = (words.x[i][lane] >> 8) < args.threshold ? 0.0f : args.scale;
      const int64_t count = std::min(4 * width, args.dim - 4 * counter);
      for (int64_t t = 0; t < num_tokens; ++t) {
        const int64_t offset = (first + t) * args.dim + 4 * counter;
        Scale(args.x + offset, factor + 4 * width * t, args.out + offset, count);
      }
    }
  }
}

}  // namespace

template <typename T>
void Dropout(const DropoutArgs<T>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { DropLoop(args, begin, end); });
}

template void Dropout(const DropoutArgs<float>&, int64_t, int64_t);
template void Dropout(const DropoutArgs<Bf16>&, int64_t, int64_t);

}  // namespace halflife::kernels::cpu
