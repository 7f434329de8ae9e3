#include "kernels/bias_map/args.h"
#include "kernels/cpu/vectorised.h"

namespace halflife::kernels::cpu {
namespace {

template <ElementMap kMap>
HL_INLINE float Map(float x) {
  if constexpr (kMap == ElementMap::kIdentity) return x;
  return Exp(x < 0.0f ? x : 0.0f) + (x <= 0.0f ? 0.0f : x);  // a NaN stays one
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
    if (args.parts[i].map == ElementMap::kIdentity) {
      ForwardRows<ElementMap::kIdentity>(args.parts[i], begin, end);
    } else {
      ForwardRows<ElementMap::kEluPlusOne>(args.parts[i], begin, end);
    }
  }
}

// sums may be dead memory where kSums is false, as dx where kWrites is.
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

template <typename T>
HL_INLINE void BackwardLoop(const BiasMapGradArgs<T>& args, int64_t begin, int64_t end,
                            float* sums) {
  for (int i = 0; i < args.num_parts; ++i) {
    const BiasMapGradColumns<T>& part = args.parts[i];
    if (part.map == ElementMap::kIdentity) {
      BackwardPart<ElementMap::kIdentity>(part, begin, end, sums);
    } else {
      BackwardPart<ElementMap::kEluPlusOne>(part, begin, end, sums);
    }
    sums += part.width;
  }
}

}  // namespace

void BiasMapForward(const BiasMapArgs<float>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ForwardLoop(args, begin, end); });
}
void BiasMapForward(const BiasMapArgs<Bf16>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ForwardLoop(args, begin, end); });
}
void BiasMapBackward(const BiasMapGradArgs<float>& args, int64_t begin, int64_t end, float* sums) {
  RunVectorised([&]() HL_LAMBDA_INLINE { BackwardLoop(args, begin, end, sums); });
}
void BiasMapBackward(const BiasMapGradArgs<Bf16>& args, int64_t begin, int64_t end, float* sums) {
  RunVectorised([&]() HL_LAMBDA_INLINE { BackwardLoop(args, begin, end, sums); });
}

}  // namespace halflife::kernels::cpu
