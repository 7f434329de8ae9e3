#include <cmath>

#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/rms_norm_args.h"

namespace halflife::kernels::cpu {
namespace {

template <typename T>
HL_INLINE float SumOfSquares(const T* __restrict x, int64_t dim) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < dim; ++i) sum += Widen(x[i]) * Widen(x[i]);
  return sum;
}

// Adds and returns the sum of squares. The squares are those of the sum as it is stored, because
// the norm uses the values that the next layer reads.
template <typename T>
HL_INLINE float AddAndSumSquares(const T* __restrict x, const T* __restrict residual,
                                 T* __restrict sum, int64_t dim) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < dim; ++i) {
    // Stored as an fp32 that Narrow() leaves unchanged: GCC does not vectorize over a variable of
    // class type.
    const float stored = Widen(Narrow<T>(Widen(x[i]) + Widen(residual[i])));
    sum[i] = Narrow<T>(stored);
    squares += stored * stored;
  }
  return squares;
}

// kGate: the function of the gate, if there is one.
template <NormGate kGate, typename T>
HL_INLINE void ForwardLoop(const NormRows<T>& rows, int64_t begin, int64_t end) {
  const int64_t dim = rows.dim;
  const float* __restrict weight = rows.weight;
  for (int64_t row = begin; row < end; ++row) {
    const T* __restrict x = rows.x + row * dim;
    T* __restrict out = rows.out + row * dim;
    float squares;
    if (rows.residual == nullptr) {
      squares = SumOfSquares(x, dim);
    } else {
      squares = AddAndSumSquares(x, rows.residual + row * dim, rows.sum + row * dim, dim);
      x = rows.sum + row * dim;
    }
    const float inverse_rms = 1.0f / std::sqrt(squares / static_cast<float>(dim) + rows.eps);
    rows.inverse_rms[row] = inverse_rms;
    if (rows.gate == nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i) out[i] = Narrow<T>(Widen(x[i]) * inverse_rms * weight[i]);
    } else {
      const T* __restrict gate = rows.gate + rows.gate_place.of(row, dim);
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i) {
        const float g = Widen(gate[i]);
        const float factor = GateFactor(kGate, g, Sigmoid(g));
        out[i] = Narrow<T>(Widen(x[i]) * inverse_rms * weight[i] * factor);
      }
    }
  }
}

// With n = x / rms, m = dout f(gate): dx = (m w - n mean(m w n)) / rms, dweight = sum of m n
// over rows. The first pass leaves m w in `scratch`.
template <typename T>
HL_INLINE float PlainTerms(const NormGradRows<T>& rows, int64_t row, float* __restrict dweight,
                           float* __restrict scratch) {
  const int64_t dim = rows.dim;
  const T* __restrict x = rows.x + row * dim;
  const T* __restrict dout = rows.dout + row * dim;
  const float* __restrict weight = rows.weight;
  const float inverse_rms = rows.inverse_rms[row];
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < dim; ++i) {
    const float dy = Widen(dout[i]), mw = dy * weight[i], xi = Widen(x[i]);
    dweight[i] += dy * xi * inverse_rms;
    scratch[i] = mw;
    dot += mw * xi;
  }
  return dot;
}

template <NormGate kGate, typename T>
HL_INLINE float GatedTerms(const NormGradRows<T>& rows, int64_t row, float* __restrict dweight,
                           float* __restrict scratch) {
  const int64_t dim = rows.dim;
  const T* __restrict x = rows.x + row * dim;
  const T* __restrict dout = rows.dout + row * dim;
  const T* __restrict gate = rows.gate + rows.gate_place.of(row, dim);
  T* __restrict dgate = rows.dgate + rows.dgate_place.of(row, dim);
  const float* __restrict weight = rows.weight;
  const float inverse_rms = rows.inverse_rms[row];
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < dim; ++i) {
    const float g = Widen(gate[i]), dy = Widen(dout[i]), xi = Widen(x[i]);
    const float sigmoid = Sigmoid(g), normed = xi * inverse_rms,
                m = dy * GateFactor(kGate, g, sigmoid);
    dgate[i] = Narrow<T>(dy * normed * weight[i] * GateSlope(kGate, g, sigmoid));
    dweight[i] += m * normed;
    const float mw = m * weight[i];
    scratch[i] = mw;
    dot += mw * xi;
  }
  return dot;
}

template <NormGate kGate, typename T>
HL_INLINE void BackwardLoop(const NormGradRows<T>& rows, int64_t begin, int64_t end, float* dweight,
                            float* scratch_in) {
  const int64_t dim = rows.dim;
  for (int64_t row = begin; row < end; ++row) {
    const float dot = rows.gate == nullptr ? PlainTerms(rows, row, dweight, scratch_in)
                                           : GatedTerms<kGate>(rows, row, dweight, scratch_in);
    const float inverse_rms = rows.inverse_rms[row];
    const float slope = dot * inverse_rms * inverse_rms * inverse_rms / static_cast<float>(dim);
    const T* __restrict x = rows.x + row * dim;
    const float* __restrict scratch = scratch_in;
    T* __restrict dx = rows.dx + row * dim;
    if (rows.dsum == nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i)
        dx[i] = Narrow<T>(scratch[i] * inverse_rms - Widen(x[i]) * slope);
    } else {
      const T* __restrict dsum = rows.dsum + row * dim;
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i)
        dx[i] = Narrow<T>(Widen(dsum[i]) + (scratch[i] * inverse_rms - Widen(x[i]) * slope));
    }
  }
}

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
void NormForward(const NormRows<T>& rows, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    if (rows.gate_kind == NormGate::kSilu) {
      ForwardLoop<NormGate::kSilu>(rows, begin, end);
    } else {
      ForwardLoop<NormGate::kSigmoid>(rows, begin, end);
    }
  });
}

template <typename T>
void NormBackward(const NormGradRows<T>& rows, int64_t begin, int64_t end, float* dweight,
                  float* scratch) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    if (rows.gate_kind == NormGate::kSilu) {
      BackwardLoop<NormGate::kSilu>(rows, begin, end, dweight, scratch);
    } else {
      BackwardLoop<NormGate::kSigmoid>(rows, begin, end, dweight, scratch);
    }
  });
}

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

template void NormForward(const NormRows<float>&, int64_t, int64_t);
template void NormForward(const NormRows<Bf16>&, int64_t, int64_t);
template void NormBackward(const NormGradRows<float>&, int64_t, int64_t, float*, float*);
template void NormBackward(const NormGradRows<Bf16>&, int64_t, int64_t, float*, float*);
template void UnitNormForward(const UnitNormArgs<float>&, int64_t, int64_t);
template void UnitNormForward(const UnitNormArgs<Bf16>&, int64_t, int64_t);
template void UnitNormBackward(const UnitNormGradArgs<float>&, int64_t, int64_t);
template void UnitNormBackward(const UnitNormGradArgs<Bf16>&, int64_t, int64_t);

}  // namespace halflife::kernels::cpu
