#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/bias_map_args.h"

namespace halflife::kernels::cpu {
namespace {

template <ElementMap kMap>
HL_INLINE float Map(float x) {
  if constexpr (kMap == ElementMap::kIdentity) return x;
  if constexpr (kMap == ElementMap::kSilu) return x / (1.0f + Exp(-x));
  return Exp(x < 0.0f ? x : 0.0f) + (x <= 0.0f ? 0.0f : x);  // NaN stays NaN
}

template <ElementMap kMap, bool kBias, typename T>
HL_INLINE void ForwardRow(const T* __restrict x, const T* __restrict bias, T* __restrict out,
                          int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    float y = Widen(x[i]);
    if constexpr (kBias) y += Widen(bias[i]);
    out[i] = Narrow<T>(Map<kMap>(y));
  }
}

template <bool kBias, typename T>
HL_INLINE void GainRow(const T* __restrict x, const float* __restrict gain,
                       const T* __restrict bias, T* __restrict out, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    float y = Widen(x[i]) * gain[i];
    if constexpr (kBias) y += Widen(bias[i]);
    out[i] = Narrow<T>(y);
  }
}
template <typename T>
HL_INLINE void GainRows(const BiasMapColumns<T>& part, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* const x = part.x + row * part.stride;
    T* const out = part.out + row * part.width;
    if (part.bias == nullptr) {
      GainRow<false>(x, part.gain, x, out, part.width);
    } else {
      GainRow<true>(x, part.gain, part.bias, out, part.width);
    }
  }
}

template <ElementMap kMap, typename T>
HL_INLINE void ForwardRows(const BiasMapColumns<T>& part, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* const x = part.x + row * part.stride;
    T* const out = part.out + row * part.width;
    if (part.bias == nullptr) {
      ForwardRow<kMap, false>(x, x, out, part.width);
    } else {
      ForwardRow<kMap, true>(x, part.bias, out, part.width);
    }
  }
}

template <typename T>
HL_INLINE void ForwardLoop(const BiasMapArgs<T>& args, int64_t begin, int64_t end) {
  for (int i = 0; i < args.num_parts; ++i) {
    const BiasMapColumns<T>& part = args.parts[i];
    if (part.gain != nullptr) {
      GainRows(part, begin, end);
    } else if (part.map == ElementMap::kIdentity) {
      ForwardRows<ElementMap::kIdentity>(part, begin, end);
    } else if (part.map == ElementMap::kSilu) {
      ForwardRows<ElementMap::kSilu>(part, begin, end);
    } else {
      ForwardRows<ElementMap::kEluPlusOne>(part, begin, end);
    }
  }
}

// `sums` is not accessed if kSums is false, nor is `dx` if kWrites is false.
template <ElementMap kMap, bool kWrites, bool kSums, typename T>
HL_INLINE void BackwardRow(const T* __restrict out, const T* __restrict dout, T* __restrict dx,
                           float* __restrict sums, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    float d = Widen(dout[i]);
    if constexpr (kMap == ElementMap::kEluPlusOne) {
      const float feature = Widen(out[i]);
      d *= feature > 1.0f ? 1.0f : feature;
    }
    if constexpr (kWrites) dx[i] = Narrow<T>(d);
    if constexpr (kSums) sums[i] += d;
  }
}

template <ElementMap kMap, bool kWrites, bool kSums, typename T>
HL_INLINE void BackwardRows(const BiasMapGradColumns<T>& part, int64_t begin, int64_t end,
                            float* sums) {
  for (int64_t row = begin; row < end; ++row)
    BackwardRow<kMap, kWrites, kSums>(part.out + row * part.width, part.dout + row * part.width,
                                      part.dx + row * part.stride, sums, part.width);
}

template <ElementMap kMap, typename T>
HL_INLINE void BackwardPart(const BiasMapGradColumns<T>& part, int64_t begin, int64_t end,
                            float* sums) {
  if (part.dx != nullptr && part.dbias != nullptr) {
    BackwardRows<kMap, true, true>(part, begin, end, sums);
  } else if (part.dx != nullptr) {
    BackwardRows<kMap, true, false>(part, begin, end, sums);
  } else if (part.dbias != nullptr) {
    BackwardRows<kMap, false, true>(part, begin, end, sums);
  }
}

// SiLU's slope at y = x + bias is s (1 + y (1 - s)), s = 1 / (1 + e^-y).
template <bool kBias, typename T>
HL_INLINE void SiluBackwardRow(const T* __restrict x, const T* __restrict bias,
                               const T* __restrict dout, T* __restrict dx, float* __restrict sums,
                               int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    float y = Widen(x[i]);
    if constexpr (kBias) y += Widen(bias[i]);
    const float s = 1.0f / (1.0f + Exp(-y));
    const float d = Widen(dout[i]) * (s * (1.0f + y * (1.0f - s)));
    dx[i] = Narrow<T>(d);
    if constexpr (kBias) sums[i] += d;
  }
}
template <typename T>
HL_INLINE void SiluBackwardRows(const BiasMapGradColumns<T>& part, int64_t begin, int64_t end,
                                float* sums) {
  for (int64_t row = begin; row < end; ++row) {
    const T *const x = part.x + row * part.x_stride, *const dout = part.dout + row * part.width;
    T* const dx = part.dx + row * part.stride;
    if (part.bias == nullptr) {
      SiluBackwardRow<false>(x, x, dout, dx, sums, part.width);
    } else {
      SiluBackwardRow<true>(x, part.bias, dout, dx, sums, part.width);
    }
  }
}

template <bool kSums, typename T>
HL_INLINE void GainBackwardRow(const T* __restrict x, const float* __restrict gain,
                               const T* __restrict dout, T* __restrict dx,
                               float* __restrict of_bias, float* __restrict of_gain,
                               int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const float d = Widen(dout[i]);
    dx[i] = Narrow<T>(d * gain[i]);
    of_bias[i] += d;
    if constexpr (kSums) of_gain[i] += d * Widen(x[i]);
  }
}
template <typename T>
HL_INLINE void GainBackwardRows(const BiasMapGradColumns<T>& part, int64_t begin, int64_t end,
                                float* of_bias, float* of_gain) {
  for (int64_t row = begin; row < end; ++row) {
    const T *const x = part.x + row * part.x_stride, *const dout = part.dout + row * part.width;
    T* const dx = part.dx + row * part.stride;
    if (part.dgain != nullptr) {
      GainBackwardRow<true>(x, part.gain, dout, dx, of_bias, of_gain, part.width);
    } else {
      GainBackwardRow<false>(x, part.gain, dout, dx, of_bias, nullptr, part.width);
    }
  }
}

template <typename T>
HL_INLINE void BackwardLoop(const BiasMapGradArgs<T>& args, int64_t begin, int64_t end,
                            float* sums) {
  float* const all = sums;
  for (int i = 0; i < args.num_parts; ++i) {
    const BiasMapGradColumns<T>& part = args.parts[i];
    if (part.gain != nullptr) {
      GainBackwardRows(part, begin, end, sums, all + args.gain_column(i));
    } else if (part.map == ElementMap::kSilu) {
      SiluBackwardRows(part, begin, end, sums);
    } else if (part.map == ElementMap::kIdentity) {
      BackwardPart<ElementMap::kIdentity>(part, begin, end, sums);
    } else {
      BackwardPart<ElementMap::kEluPlusOne>(part, begin, end, sums);
    }
    sums += part.width;
  }
}

}  // namespace

template <typename T>
void BiasMapForward(const BiasMapArgs<T>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ForwardLoop(args, begin, end); });
}
template <typename T>
void BiasMapBackward(const BiasMapGradArgs<T>& args, int64_t begin, int64_t end, float* sums) {
  RunVectorised([&]() HL_LAMBDA_INLINE { BackwardLoop(args, begin, end, sums); });
}

template void BiasMapForward(const BiasMapArgs<float>&, int64_t, int64_t);
template void BiasMapForward(const BiasMapArgs<Bf16>&, int64_t, int64_t);
template void BiasMapBackward(const BiasMapGradArgs<float>&, int64_t, int64_t, float*);
template void BiasMapBackward(const BiasMapGradArgs<Bf16>&, int64_t, int64_t, float*);

}  // namespace halflife::kernels::cpu
