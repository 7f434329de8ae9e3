// Arguments of the skip connection and the gate behind a state-space scan with heads (Dao and Gu,
// 2024), shared by their LibTorch side, CPU loops and CUDA kernels. In heads h of P channels:
//
//   out = (y + skip_h x) silu(gate),  without the factor silu(gate) if there is no gate
//
// Backward, with p = y + skip_h x and d = dout silu(gate):
//   dy = d,   dx = skip_h d,   dgate = dout p silu'(gate),   dskip_h = sum of d x over rows and P
//
// y, out, dout, dy and dx are contiguous. x, gate and dgate may be columns of wider matrices: their
// strides are the elements between two rows. T is float or Bf16; arithmetic and skip are fp32.
// C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

template <typename T>
struct SkipGateRows {
  const T* y = nullptr;         // [rows, H, P]
  const T* x = nullptr;         // [rows, H, P]
  const T* gate = nullptr;      // [rows, H, P]; null: none
  const float* skip = nullptr;  // [H]
  T* out = nullptr;             // [rows, H, P]
  int64_t num_rows = 0, num_heads = 0, head_dim = 0;
  int64_t x_stride = 0, gate_stride = 0;
  int64_t dim() const { return num_heads * head_dim; }
};
template <typename T>
struct SkipGateGradRows {
  SkipGateRows<T> forward;  // without out
  const T* dout = nullptr;  // [rows, H, P]
  T* dy = nullptr;          // [rows, H, P]
  T* dx = nullptr;          // [rows, H, P]
  T* dgate = nullptr;       // [rows, H, P]; null without a gate
  int64_t dgate_stride = 0;
};

namespace cpu {
// Rows per partial sum of dskip. Fixed, so that the sum does not depend on the number of threads.
constexpr int64_t kSkipGateRowsPerBlock = 64;

// Processes rows [begin, end).
template <typename T>
void SkipGateForward(const SkipGateRows<T>& rows, int64_t begin, int64_t end);
// Computes the gradients of rows [begin, end) and adds theirs to dskip [H].
template <typename T>
void SkipGateBackward(const SkipGateGradRows<T>& rows, int64_t begin, int64_t end, float* dskip);
}  // namespace cpu

namespace cuda {
template <typename T>
void SkipGateForward(const SkipGateRows<T>& rows, cudaStream_t stream);
// Overwrites dskip [H] or, if `added`, adds to it. `partials` is [NumRowPartials(num_rows),
// H P].
template <typename T>
void SkipGateBackward(const SkipGateGradRows<T>& rows, float* dskip, bool added, float* partials,
                      cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
