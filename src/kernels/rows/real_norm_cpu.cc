#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/real_norm_args.h"

namespace halflife::kernels::cpu {
namespace {

template <typename T>
HL_INLINE void ForwardLoop(const RealNormRows<T>& rows, int64_t begin, int64_t end) {
  const int64_t dim = rows.dim;
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict x = rows.x + row * dim;
    float* __restrict out = rows.out + row * dim;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < dim; ++i) sum += Widen(x[i]);
    const float mean = sum / static_cast<float>(dim);
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < dim; ++i) {
      const float centred = Widen(x[i]) - mean;
      squares += centred * centred;
    }
    const RealNormScale scale = RealNormScale::Of(squares, dim, rows.eps);
    rows.factor[row] = scale.factor, rows.slope[row] = scale.slope;
    const float factor = scale.factor;
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) out[i] = (Widen(x[i]) - mean) * factor;
  }
}

template <typename T>
HL_INLINE void BackwardLoop(const RealNormGradRows<T>& rows, int64_t begin, int64_t end) {
  const int64_t dim = rows.dim;
  for (int64_t row = begin; row < end; ++row) {
    const float* __restrict y = rows.out + row * dim;
    const float* __restrict dy = rows.dout + row * dim;
    T* __restrict dx = rows.dx + row * dim;
    float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < dim; ++i) sum += dy[i], dot += dy[i] * y[i];
    const float mean = sum / static_cast<float>(dim), along = dot * rows.slope[row];
    const float factor = rows.factor[row];
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) dx[i] = Narrow<T>(factor * (dy[i] - mean - y[i] * along));
  }
}

}  // namespace

template <typename T>
void RealNormForward(const RealNormRows<T>& rows, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ForwardLoop(rows, begin, end); });
}
template <typename T>
void RealNormBackward(const RealNormGradRows<T>& rows, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { BackwardLoop(rows, begin, end); });
}

template void RealNormForward(const RealNormRows<float>&, int64_t, int64_t);
template void RealNormForward(const RealNormRows<Bf16>&, int64_t, int64_t);
template void RealNormBackward(const RealNormGradRows<float>&, int64_t, int64_t);
template void RealNormBackward(const RealNormGradRows<Bf16>&, int64_t, int64_t);

}  // namespace halflife::kernels::cpu
