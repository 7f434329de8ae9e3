#include <limits>

#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/decay_gates_args.h"

namespace halflife::kernels::cpu {
namespace {

// Returns the log decay before the floor is applied.
HL_INLINE float LogDecay(float x, float scale) {
  const float most = x < 0.0f ? x : 0.0f;
  return scale * (most - LogOnePlus(Exp(x < 0.0f ? x : -x)));
}

template <typename T>
HL_INLINE void ForwardLoop(const DecayGateRows<T>& rows, int64_t begin, int64_t end) {
  const int64_t dim = rows.dim;
  const float* __restrict bias = rows.form.bias;
  const float scale = rows.form.scale, floor = rows.form.floor;
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict x = rows.x + row * dim;
    float* __restrict out = rows.log_decay + row * dim;
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) {
      const float y = LogDecay(Widen(x[i]) + bias[i], scale);
      out[i] = y < floor ? floor : y;  // NaN stays NaN
    }
  }
}

// kBounded: whether there is a floor.
template <bool kBounded, typename T>
HL_INLINE void BackwardLoop(const DecayGateGradRows<T>& rows, int64_t begin, int64_t end,
                            float* __restrict dbias) {
  const int64_t dim = rows.dim;
  const float* __restrict bias = rows.form.bias;
  const float scale = rows.form.scale, floor = rows.form.floor;
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict x = rows.x + row * dim;
    const float* __restrict dout = rows.dlog_decay + row * dim;
    T* __restrict dx = rows.dx + row * dim;
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) {
      const float z = Widen(x[i]) + bias[i];
      float slope = scale * Sigmoid(-z);
      if constexpr (kBounded) slope = LogDecay(z, scale) < floor ? 0.0f : slope;
      const float dz = dout[i] * slope;
      dx[i] = Narrow<T>(dz);
      dbias[i] += dz;
    }
  }
}

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

template <typename T>
void DecayGateForward(const DecayGateRows<T>& rows, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ForwardLoop(rows, begin, end); });
}

template <typename T>
void DecayGateBackward(const DecayGateGradRows<T>& rows, int64_t begin, int64_t end, float* dbias) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    if (rows.form.floor > -std::numeric_limits<float>::infinity()) {
      BackwardLoop<true>(rows, begin, end, dbias);
    } else {
      BackwardLoop<false>(rows, begin, end, dbias);
    }
  });
}

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

template void DecayGateBackward(const DecayGateGradRows<float>&, int64_t, int64_t, float*);
template void DecayGateBackward(const DecayGateGradRows<Bf16>&, int64_t, int64_t, float*);
template void DecayGateForward(const DecayGateRows<float>&, int64_t, int64_t);
template void DecayGateForward(const DecayGateRows<Bf16>&, int64_t, int64_t);

}  // namespace halflife::kernels::cpu
