// Arguments of the layer norm and of standardization, shared by their LibTorch side, CPU loops and
// CUDA kernels. C++17 without LibTorch, because CUDA sources include it.
//
// The layer norm:
//
//   y = n gamma + beta,   n = (x - mean) f,   f = 1 / sqrt(mean((x - mean)^2) + eps)
//   dx = f (m - mean(m) - n mean(m n)),   m = dout gamma
//   dgamma = sum of dout n, dbeta = sum of dout, both over rows
//
// One pass handles several matrices of the same size. Rows of out, dout, mean and f are contiguous.
// Those of x and dx may be columns of a wider matrix: groups of `rows` rows (the heads of a token)
// are contiguous, and the groups begin `stride` elements apart. T is float or Bf16; arithmetic and
// parameters are fp32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

constexpr int kLayerNormParts = 2;  // maximum parts of a pass: their gradients are four sums

// The memory layout of a matrix's rows.
struct LayerNormRows {
  int64_t rows = 1, stride = 0;
  HL_EVERYWHERE constexpr int64_t of(int64_t row, int64_t dim) const {
    return row / rows * stride + row % rows * dim;
  }
};

template <typename T>
struct LayerNormPart {
  const T* x = nullptr;
  LayerNormRows place;
  const float* gamma = nullptr;  // [dim]
  const float* beta = nullptr;   // [dim]; null: none
  T* out = nullptr;              // [rows, dim]
  float* mean = nullptr;         // [rows]
  float* factor = nullptr;       // [rows], f
};
template <typename T>
struct LayerNormArgs {
  LayerNormPart<T> parts[kLayerNormParts];
  int num_parts = 0;
  int64_t num_rows = 0, dim = 0;
  float eps = 0;
};

template <typename T>
struct LayerNormGradPart {
  const T* x = nullptr;
  LayerNormRows place;
  const float* gamma = nullptr;
  const float* mean = nullptr;
  const float* factor = nullptr;
  const T* dout = nullptr;  // [rows, dim]
  T* dx = nullptr;
  LayerNormRows dx_place;
  float* dgamma = nullptr;                       // [dim]
  float* dbeta = nullptr;                        // [dim]; null: none
  bool gamma_added = false, beta_added = false;  // true: add to their contents
};
template <typename T>
struct LayerNormGradArgs {
  LayerNormGradPart<T> parts[kLayerNormParts];
  int num_parts = 0;
  int64_t num_rows = 0, dim = 0;
};

// The standardization of rows:
//
//   y = c f,   c = x - mean(x),   f = 1 / (s + eps),   s = sqrt(sum(c^2) / (dim - 1))
//   dx = f (dy - mean(dy) - y g dot(dy, y)),   g = (s + eps) / (s (dim - 1))
//
// A constant row has s = 0: then f = 1 / eps, or 0 without an eps, and g = 0 (specification
// leap_fastformer 1.4). Rows are contiguous. T is float or Bf16, the type of x only; arithmetic and
// y are fp32.
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
// Processes rows [begin, end) of every part.
template <typename T>
void LayerNormForward(const LayerNormArgs<T>& args, int64_t begin, int64_t end);
// Computes the gradients of these rows and adds those of gamma and beta to sums [num_parts, 2,
// dim].
template <typename T>
void LayerNormBackward(const LayerNormGradArgs<T>& args, int64_t begin, int64_t end, float* sums);

// Processes rows [begin, end).
template <typename T>
void RealNormForward(const RealNormRows<T>& rows, int64_t begin, int64_t end);
template <typename T>
void RealNormBackward(const RealNormGradRows<T>& rows, int64_t begin, int64_t end);
}  // namespace cpu

namespace cuda {
// The maximum number of partial sums of gamma's and beta's gradients: one per block of a part.
constexpr int64_t kLayerNormMaxBlocks = 256;
inline int64_t LayerNormPartials(int64_t num_rows) {
  return std::min(kLayerNormMaxBlocks, num_rows);
}

template <typename T>
void LayerNormForward(const LayerNormArgs<T>& args, cudaStream_t stream);
// `partials` holds LayerNormPartials(num_rows) num_parts 2 dim floats.
template <typename T>
void LayerNormBackward(const LayerNormGradArgs<T>& args, float* partials, cudaStream_t stream);

template <typename T>
void RealNormForward(const RealNormRows<T>& rows, cudaStream_t stream);
template <typename T>
void RealNormBackward(const RealNormGradRows<T>& rows, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
