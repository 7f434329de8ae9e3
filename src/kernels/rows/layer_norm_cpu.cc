#include <cmath>

#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/layer_norm_args.h"

namespace halflife::kernels::cpu {
namespace {

template <bool kBeta, typename T>
HL_INLINE void ForwardRow(const T* __restrict x, const float* __restrict gamma,
                          const float* __restrict beta, T* __restrict out, int64_t dim, float mean,
                          float factor) {
#pragma omp simd
  for (int64_t i = 0; i < dim; ++i) {
    float y = (Widen(x[i]) - mean) * factor * gamma[i];
    if constexpr (kBeta) y += beta[i];
    out[i] = Narrow<T>(y);
  }
}

template <typename T>
HL_INLINE void ForwardLoop(const LayerNormArgs<T>& args, const LayerNormPart<T>& part,
                           int64_t begin, int64_t end) {
  const int64_t dim = args.dim;
  const auto width = static_cast<float>(dim);
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict x = part.x + part.place.of(row, dim);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < dim; ++i) sum += Widen(x[i]);
    const float mean = sum / width;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < dim; ++i) {
      const float centred = Widen(x[i]) - mean;
      squares += centred * centred;
    }
    const float factor = 1.0f / std::sqrt(squares / width + args.eps);
    part.mean[row] = mean, part.factor[row] = factor;
    if (part.beta == nullptr) {
      ForwardRow<false>(x, part.gamma, part.gamma, part.out + row * dim, dim, mean, factor);
    } else {
      ForwardRow<true>(x, part.gamma, part.beta, part.out + row * dim, dim, mean, factor);
    }
  }
}

template <typename T>
HL_INLINE void BackwardLoop(const LayerNormGradPart<T>& part, int64_t dim, int64_t begin,
                            int64_t end, float* __restrict dgamma, float* __restrict dbeta) {
  const float* __restrict gamma = part.gamma;
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict x = part.x + part.place.of(row, dim);
    const T* __restrict dout = part.dout + row * dim;
    const float mean = part.mean[row], factor = part.factor[row];
    float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < dim; ++i) {
      const float n = (Widen(x[i]) - mean) * factor, dy = Widen(dout[i]), m = dy * gamma[i];
      dgamma[i] += dy * n;
      dbeta[i] += dy;
      sum += m;
      dot += m * n;
    }
    const float level = sum / static_cast<float>(dim), along = dot / static_cast<float>(dim);
    T* __restrict dx = part.dx + part.dx_place.of(row, dim);
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) {
      const float n = (Widen(x[i]) - mean) * factor;
      dx[i] = Narrow<T>(factor * (Widen(dout[i]) * gamma[i] - level - n * along));
    }
  }
}

template <typename T>
HL_INLINE void RealNormForwardLoop(const RealNormRows<T>& rows, int64_t begin, int64_t end) {
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
HL_INLINE void RealNormBackwardLoop(const RealNormGradRows<T>& rows, int64_t begin, int64_t end) {
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
void LayerNormForward(const LayerNormArgs<T>& args, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    for (int i = 0; i < args.num_parts; ++i) ForwardLoop(args, args.parts[i], begin, end);
  });
}

template <typename T>
void LayerNormBackward(const LayerNormGradArgs<T>& args, int64_t begin, int64_t end, float* sums) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    for (int i = 0; i < args.num_parts; ++i) {
      float* const of_part = sums + 2 * i * args.dim;
      BackwardLoop(args.parts[i], args.dim, begin, end, of_part, of_part + args.dim);
    }
  });
}

template <typename T>
void RealNormForward(const RealNormRows<T>& rows, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { RealNormForwardLoop(rows, begin, end); });
}
template <typename T>
void RealNormBackward(const RealNormGradRows<T>& rows, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE { RealNormBackwardLoop(rows, begin, end); });
}

template void LayerNormForward(const LayerNormArgs<float>&, int64_t, int64_t);
template void LayerNormForward(const LayerNormArgs<Bf16>&, int64_t, int64_t);
template void LayerNormBackward(const LayerNormGradArgs<float>&, int64_t, int64_t, float*);
template void LayerNormBackward(const LayerNormGradArgs<Bf16>&, int64_t, int64_t, float*);
template void RealNormForward(const RealNormRows<float>&, int64_t, int64_t);
template void RealNormForward(const RealNormRows<Bf16>&, int64_t, int64_t);
template void RealNormBackward(const RealNormGradRows<float>&, int64_t, int64_t);
template void RealNormBackward(const RealNormGradRows<Bf16>&, int64_t, int64_t);

}  // namespace halflife::kernels::cpu
