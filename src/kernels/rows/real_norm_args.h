// Arguments of the standardization of rows, shared by its LibTorch side, CPU loops and CUDA
// kernels.
//
//   y = c f,   c = x - mean(x),   f = 1 / (s + eps),   s = sqrt(sum(c^2) / (dim - 1))
//   dx = f (dy - mean(dy) - y g dot(dy, y)),   g = (s + eps) / (s (dim - 1))
//
// A constant row has s = 0: then f = 1 / eps, or 0 without an eps, and g = 0 (specification
// leap_fastformer 1.4). Rows are contiguous. T is float or Bf16, the type of x only; arithmetic and
// y are fp32. C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

template <typename T>
struct RealNormRows {
  const T* x = nullptr;           // [rows, dim]
  float* out = nullptr;           // [rows, dim], y
  float* factor = nullptr;        // [rows], f
  float* slope = nullptr;         // [rows], g
  int64_t num_rows = 0, dim = 0;  // dim >= 2
  float eps = 0;
};

template <typename T>
struct RealNormGradRows {
  const float* out = nullptr;     // [rows, dim], y
  const float* factor = nullptr;  // [rows]
  const float* slope = nullptr;   // [rows]
  const float* dout = nullptr;    // [rows, dim]
  T* dx = nullptr;                // [rows, dim]
  int64_t num_rows = 0, dim = 0;
};

// f and g of a row.
struct RealNormScale {
  float factor, slope;

  // Returns f and g of a row whose c^2 add up to `squares`.
  HL_EVERYWHERE static RealNormScale Of(float squares, int64_t dim, float eps) {
    const auto free = static_cast<float>(dim - 1);
    const float deviation = sqrtf(squares / free);
    if (deviation == 0) return {eps > 0 ? 1 / eps : 0.0f, 0.0f};
    return {1 / (deviation + eps), (deviation + eps) / (deviation * free)};
  }
};

namespace cpu {
// Processes rows [begin, end).
template <typename T>
void RealNormForward(const RealNormRows<T>& rows, int64_t begin, int64_t end);
template <typename T>
void RealNormBackward(const RealNormGradRows<T>& rows, int64_t begin, int64_t end);
}  // namespace cpu

namespace cuda {
template <typename T>
void RealNormForward(const RealNormRows<T>& rows, cudaStream_t stream);
template <typename T>
void RealNormBackward(const RealNormGradRows<T>& rows, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
