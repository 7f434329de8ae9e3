// Inner header of RmsNorm: its fused loops over rows, one for each storage type.
#pragma once

#include <cstdint>

#include "kernels/cpu_math.h"

namespace halflife::kernels::internal {

// Rows per partial sum of the weight's gradient: fixed, so that the sum does not depend on the number of threads.
constexpr int64_t kNormRowsPerBlock = 128;

// T: float or Bf16.
template <typename T>
struct NormRows {
  const T* x;         // [rows, dim]
  const T* residual;  // [rows, dim]; null: norm of x itself
  const T* gate;      // [rows, dim]; null: no gate
  const float* weight;
  T* sum;  // [rows, dim], x + residual, with `residual`
  T* out;
  float* inverse_rms;  // [rows]
  int64_t dim;
  float eps;
};
void NormForward(const NormRows<float>& rows, int64_t begin, int64_t end);
void NormForward(const NormRows<Bf16>& rows, int64_t begin, int64_t end);

template <typename T>
struct NormGradRows {
  const T* x;     // [rows, dim], what was normed
  const T* gate;  // null: no gate
  const float* weight;
  const float* inverse_rms;  // [rows]
  const T* dout;
  const T* dsum;  // joins dx: the gradient of x by its other use; null: none
  T* dx;
  T* dgate;
  int64_t dim;
};
// Gradients of rows [begin, end); dweight [dim] += theirs. `scratch` holds dim floats.
void NormBackward(const NormGradRows<float>& rows, int64_t begin, int64_t end, float* dweight,
                  float* scratch);
void NormBackward(const NormGradRows<Bf16>& rows, int64_t begin, int64_t end, float* dweight,
                  float* scratch);

}  // namespace halflife::kernels::internal
