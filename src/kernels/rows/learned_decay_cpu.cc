#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/learned_decay_args.h"

namespace halflife::kernels::cpu {
namespace {

HL_INLINE void NegativeExpLoop(const float* __restrict p, float* __restrict y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = -Exp(p[i]);
}

HL_INLINE void HeadOffsetLoop(const LearnedDecayArgs& args) {
  for (int64_t head = 0; head < args.heads; ++head) {
    const OffHead off(head, args);
    const float* __restrict p = args.p + head * args.width;
    float* __restrict y = args.log_decay + head * args.width;
#pragma omp simd
    for (int64_t i = 0; i < args.width; ++i) y[i] = off.Of(p[i]);
  }
}

// Sets dp = d or, if `added`, dp += d.
HL_INLINE void Put(float* dp, float d, bool added) { *dp = added ? *dp + d : d; }

HL_INLINE void NegativeExpGradLoop(const float* __restrict y, const float* __restrict dy,
                                   float* __restrict dp, int64_t n, bool added) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) Put(dp + i, dy[i] * y[i], added);
}

HL_INLINE void HeadOffsetGradLoop(const LearnedDecayGradArgs& args) {
  const LearnedDecayArgs& forward = args.forward;
  for (int64_t head = 0; head < forward.heads; ++head) {
    const OffHead off(head, forward);
    const int64_t first = head * forward.width;
    const float* __restrict p = forward.p + first;
    const float* __restrict dy = args.dlog_decay + first;
    float* __restrict dp = args.dp + first;
    const bool added = args.added;
#pragma omp simd
    for (int64_t i = 0; i < forward.width; ++i) Put(dp + i, dy[i] * off.Slope(p[i]), added);
  }
}

}  // namespace

void LearnedDecayForward(const LearnedDecayArgs& args) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    if (args.form == LearnedDecayForm::kNegativeExp) {
      NegativeExpLoop(args.p, args.log_decay, args.heads * args.width);
    } else {
      HeadOffsetLoop(args);
    }
  });
}

void LearnedDecayBackward(const LearnedDecayGradArgs& args) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    const LearnedDecayArgs& forward = args.forward;
    if (forward.form == LearnedDecayForm::kNegativeExp) {
      NegativeExpGradLoop(forward.log_decay, args.dlog_decay, args.dp,
                          forward.heads * forward.width, args.added);
    } else {
      HeadOffsetGradLoop(args);
    }
  });
}

}  // namespace halflife::kernels::cpu
