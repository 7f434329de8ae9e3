#include <algorithm>

#include "kernels/cpu/philox_lanes.h"
#include "kernels/cpu/vectorised.h"
#include "kernels/dropout/args.h"

namespace halflife::kernels::cpu {
namespace {

constexpr int64_t kLanes = 64;  // counters that are drawn at a time

template <typename T>
HL_INLINE void DropLoop(const DropoutArgs<T>& args, int64_t begin, int64_t end) {
  PhiloxLanes<kLanes> words;
  float factor[4 * kLanes];
  for (int64_t token = begin; token < end; ++token) {
    const uint64_t sample = args.samples[token / args.seq_len];
    const auto position = static_cast<uint32_t>(args.first_position + token % args.seq_len);
    for (int64_t channel = 0; channel < args.dim; channel += 4 * kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane)
        words.SetCounter(lane, sample, position, static_cast<uint32_t>(channel / 4 + lane));
      words.Draw(args.key);
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
