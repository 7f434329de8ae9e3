#include <cmath>

#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/unit_norm_args.h"

namespace halflife::kernels::cpu {
namespace {

template <typename T>
HL_INLINE float UnitRow(const T* __restrict x, T* __restrict out, int64_t dim, float eps) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < dim; ++i) squares += Widen(x[i]) * Widen(x[i]);
  const float factor = 1.0f / std::sqrt(squares + eps);
#pragma omp simd
  for (int64_t i = 0; i < dim; ++i) out[i] = Narrow<T>(Widen(x[i]) * factor);
  return factor;
}

template <typename T>
HL_INLINE void UnitRowGradient(const T* __restrict y, const T* __restrict dy, T* __restrict dx,
                               int64_t dim, float factor) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < dim; ++i) dot += Widen(dy[i]) * Widen(y[i]);
#pragma omp simd
  for (int64_t i = 0; i < dim; ++i) dx[i] = Narrow<T>(factor * (Widen(dy[i]) - Widen(y[i]) * dot));
}

}  // namespace

template <typename T>
void UnitNormForward(const UnitNormArgs<T>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    for (int part = 0; part < args.num_parts; ++part) {
      const UnitNormPart<T>& p = args.parts[part];
      for (int64_t row = begin; row < end; ++row)
        p.factor[row] = UnitRow(p.x + row * args.dim, p.out + row * args.dim, args.dim, args.eps);
    }
  });
}

template <typename T>
void UnitNormBackward(const UnitNormGradArgs<T>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    for (int part = 0; part < args.num_parts; ++part) {
      const UnitNormGradPart<T>& p = args.parts[part];
      for (int64_t row = begin; row < end; ++row)
        UnitRowGradient(p.out + row * args.dim, p.dout + row * args.dim, p.dx + row * args.dim,
                        args.dim, p.factor[row]);
    }
  });
}

template void UnitNormForward(const UnitNormArgs<float>&, int64_t, int64_t);
template void UnitNormForward(const UnitNormArgs<Bf16>&, int64_t, int64_t);
template void UnitNormBackward(const UnitNormGradArgs<float>&, int64_t, int64_t);
template void UnitNormBackward(const UnitNormGradArgs<Bf16>&, int64_t, int64_t);

}  // namespace halflife::kernels::cpu
