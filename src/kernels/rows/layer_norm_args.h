// Arguments of the layer norm, shared by its LibTorch side, CPU loops and CUDA kernels.
//
//   y = n gamma + beta,   n = (x - mean) f,   f = 1 / sqrt(mean((x - mean)^2) + eps)
//   dx = f (m - mean(m) - n mean(m n)),   m = dout gamma
//   dgamma = sum of dout n, dbeta = sum of dout, both over rows
//
// One pass handles several matrices of the same size. Rows of out, dout, mean and f are contiguous.
// Those of x and dx may be columns of a wider matrix: groups of `rows` rows (the heads of a token)
// are contiguous, and the groups begin `stride` elements apart. T is float or Bf16; arithmetic and
// parameters are fp32. C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <algorithm>
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

namespace cpu {
// Processes rows [begin, end) of every part.
template <typename T>
void LayerNormForward(const LayerNormArgs<T>& args, int64_t begin, int64_t end);
// Computes the gradients of these rows and adds those of gamma and beta to sums [num_parts, 2,
// dim].
template <typename T>
void LayerNormBackward(const LayerNormGradArgs<T>& args, int64_t begin, int64_t end, float* sums);
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
}  // namespace cuda

}  // namespace halflife::kernels
