// The contract of the root-mean-square norm between its binding, its CPU loops and its CUDA
// kernels.
//
//   out = n weight silu(gate),   n = x / rms(x),   rms(x) = sqrt(mean(x^2) + eps)
//   dx = (m weight - n mean(m weight n)) / rms,   dweight = sum of m n over rows,
//   m = dout silu(gate)
//
// Rows are contiguous and follow one another, but for the gate's, which may be columns of a matrix
// with more: `gate_rows` of them (the heads of a token) follow one another there, and begin
// `gate_stride` elements behind those before them. T: float or Bf16; arithmetic is fp32. C++17, no
// LibTorch: CUDA sources include it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// Where the gate has a row.
struct NormGatePlace {
  int64_t gate_rows = 1, gate_stride = 0;  // 0: contiguous
  HL_EVERYWHERE constexpr int64_t of(int64_t row, int64_t dim) const {
    return gate_stride == 0 ? row * dim : row / gate_rows * gate_stride + row % gate_rows * dim;
  }
};

template <typename T>
struct NormRows {
  const T* x = nullptr;         // [rows, dim]
  const T* residual = nullptr;  // [rows, dim]; null: norm of x itself
  const T* gate = nullptr;      // [rows, dim]; null: no gate
  NormGatePlace gate_place;
  const float* weight = nullptr;  // [dim]
  // [rows, dim], x + residual as stored, which is what is normed; with `residual`
  T* sum = nullptr;
  T* out = nullptr;              // [rows, dim]
  float* inverse_rms = nullptr;  // [rows]
  int64_t num_rows = 0, dim = 0;
  float eps = 0;
};

template <typename T>
struct NormGradRows {
  const T* x = nullptr;     // [rows, dim], what was normed
  const T* gate = nullptr;  // [rows, dim]; null: no gate
  NormGatePlace gate_place;
  const float* weight = nullptr;
  const float* inverse_rms = nullptr;  // [rows]
  const T* dout = nullptr;
  const T* dsum = nullptr;  // [rows, dim], joins dx: the gradient of x by its other use; null: none
  T* dx = nullptr;
  T* dgate = nullptr;  // with `gate`; contiguous
  int64_t num_rows = 0, dim = 0;
};

namespace cpu {
// Rows per partial sum of the weight's gradient: fixed, so that the sum does not depend on the
// number of threads.
constexpr int64_t kNormRowsPerBlock = 128;

// Rows [begin, end).
void NormForward(const NormRows<float>& rows, int64_t begin, int64_t end);
void NormForward(const NormRows<Bf16>& rows, int64_t begin, int64_t end);
// Gradients of rows [begin, end); dweight [dim] += theirs. `scratch` holds dim floats.
void NormBackward(const NormGradRows<float>& rows, int64_t begin, int64_t end, float* dweight,
                  float* scratch);
void NormBackward(const NormGradRows<Bf16>& rows, int64_t begin, int64_t end, float* dweight,
                  float* scratch);
}  // namespace cpu

namespace cuda {
// Partial sums of the weight's gradient: one a block, of at most so many blocks.
constexpr int64_t kNormMaxBlocks = 768;
inline int64_t NormWorkspaceFloats(int64_t num_rows, int64_t dim) {
  return std::min(kNormMaxBlocks, num_rows) * dim;
}

void NormForward(const NormRows<float>& rows, cudaStream_t stream);
void NormForward(const NormRows<Bf16>& rows, cudaStream_t stream);
// dweight [dim] is overwritten or, `added`, added to; `workspace` holds NormWorkspaceFloats.
void NormBackward(const NormGradRows<float>& rows, float* dweight, bool added, float* workspace,
                  cudaStream_t stream);
void NormBackward(const NormGradRows<Bf16>& rows, float* dweight, bool added, float* workspace,
                  cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
