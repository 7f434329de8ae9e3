#include "kernels/common/cpu/softplus.h"
#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/delta_gates_args.h"

namespace halflife::kernels::cpu {
namespace {

template <typename T>
HL_INLINE void LogDecayLoop(const DeltaGatesRows<T>& rows, int64_t row) {
  const int64_t dim = rows.form.num_decays();
  const float* __restrict bias = rows.form.bias;
  const float* __restrict rates = rows.form.rates;
  const float bound = rows.form.bound;
  const T* __restrict x = rows.x + row * rows.x_stride;
  float* __restrict log_decay = rows.log_decay + row * dim;
  if (bound < 0) {
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i)
      log_decay[i] = bound * Sigmoid(rates[i] * (Widen(x[i]) + bias[i]));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) log_decay[i] = -rates[i] * SoftPlus(Widen(x[i]) + bias[i]);
  }
}

template <typename T>
HL_INLINE void BetaLoop(const DeltaGatesRows<T>& rows, int64_t row) {
  const int64_t count = rows.form.num_betas;
  const float scale = rows.form.beta_scale;
  const T* __restrict b = rows.b + row * rows.b_stride;
  float* __restrict beta = rows.beta + row * count;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) beta[i] = scale * Sigmoid(Widen(b[i]));
}

template <typename T>
HL_INLINE void DecayGradientLoop(const DeltaGatesGradRows<T>& rows, int64_t row,
                                 float* __restrict dbias, float* __restrict da_log) {
  const int64_t dim = rows.form.num_decays();
  const float* __restrict bias = rows.form.bias;
  const float* __restrict rates = rows.form.rates;
  const float bound = rows.form.bound;
  const T* __restrict x = rows.x + row * rows.x_stride;
  const float* __restrict dlog_decay = rows.dlog_decay + row * dim;
  T* __restrict dx = rows.dx + row * rows.dx_stride;
  if (bound < 0) {
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) {
      const float z = Widen(x[i]) + bias[i], s = Sigmoid(rates[i] * z);
      const float dz = dlog_decay[i] * bound * s * (1.0f - s) * rates[i];
      dx[i] = Narrow<T>(dz);
      dbias[i] += dz;
      da_log[i] += dz * z;
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) {
      const float z = Widen(x[i]) + bias[i], d = -dlog_decay[i] * rates[i];
      const float dz = d * Sigmoid(z);
      dx[i] = Narrow<T>(dz);
      dbias[i] += dz;
      da_log[i] += d * SoftPlus(z);
    }
  }
}

template <typename T>
HL_INLINE void BetaGradientLoop(const DeltaGatesGradRows<T>& rows, int64_t row) {
  const int64_t count = rows.form.num_betas;
  const float scale = rows.form.beta_scale;
  const T* __restrict b = rows.b + row * rows.b_stride;
  const float* __restrict dbeta = rows.dbeta + row * count;
  T* __restrict db = rows.db + row * rows.db_stride;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float s = Sigmoid(Widen(b[i]));
    db[i] = Narrow<T>(dbeta[i] * scale * s * (1.0f - s));
  }
}

}  // namespace

template <typename T>
void DeltaGatesForward(const DeltaGatesRows<T>& rows, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    for (int64_t row = begin; row < end; ++row) LogDecayLoop(rows, row), BetaLoop(rows, row);
  });
}

template <typename T>
void DeltaGatesBackward(const DeltaGatesGradRows<T>& rows, int64_t begin, int64_t end,
                        float* sums) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    for (int64_t row = begin; row < end; ++row) {
      DecayGradientLoop(rows, row, sums, sums + rows.form.num_decays());
      BetaGradientLoop(rows, row);
    }
  });
}

template void DeltaGatesForward(const DeltaGatesRows<float>&, int64_t, int64_t);
template void DeltaGatesForward(const DeltaGatesRows<Bf16>&, int64_t, int64_t);
template void DeltaGatesBackward(const DeltaGatesGradRows<float>&, int64_t, int64_t, float*);
template void DeltaGatesBackward(const DeltaGatesGradRows<Bf16>&, int64_t, int64_t, float*);

}  // namespace halflife::kernels::cpu
