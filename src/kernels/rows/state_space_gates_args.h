// Arguments of the gates of a state-space layer with one decay per head (Dao and Gu, 2024), shared
// by their LibTorch side, CPU loops and CUDA kernels. C++17 without LibTorch, because CUDA sources
// include it.
//
// The step gate before the scan:
//
//   step = min(max(softplus(x + bias), least), most),   log_decay = -e^{a_log} step
//
// Backward, with s = dstep - e^{a_log} dlog_decay:
//   dx = s sigmoid(x + bias) where no limit applies, 0 where one does; dbias = sum of dx over rows
//   da_log = sum over rows of dlog_decay log_decay
//
// x and dx may be columns of wider matrices: their strides are the elements between two rows. step,
// log_decay and their gradients are contiguous. T is float or Bf16, the type of x and dx only;
// everything else is fp32.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// The parameters of the gate.
struct StepGateForm {
  const float* bias = nullptr;   // [dim]
  const float* a_log = nullptr;  // [dim]
  float least = 0, most = 0;     // limits of a step; most may be infinity
};

template <typename T>
struct StepGateRows {
  const T* x = nullptr;        // [rows, dim]
  float* step = nullptr;       // [rows, dim]
  float* log_decay = nullptr;  // [rows, dim]
  StepGateForm form;
  int64_t num_rows = 0, dim = 0, x_stride = 0;
};
template <typename T>
struct StepGateGradRows {
  const T* x = nullptr;               // [rows, dim]
  const float* dstep = nullptr;       // [rows, dim]
  const float* dlog_decay = nullptr;  // [rows, dim]
  T* dx = nullptr;                    // [rows, dim]
  StepGateForm form;
  int64_t num_rows = 0, dim = 0, x_stride = 0, dx_stride = 0;
};
// The sums of the backward. Null: not computed. `added`: add to the contents.
struct StepGateSums {
  float* dbias = nullptr;   // [dim]
  float* da_log = nullptr;  // [dim]
  bool dbias_added = false, da_log_added = false;
};

// The skip connection and the gate behind the scan. In heads h of P channels:
//
//   out = (y + skip_h x) silu(gate),  without the factor silu(gate) if there is no gate
//
// Backward, with p = y + skip_h x and d = dout silu(gate):
//   dy = d,   dx = skip_h d,   dgate = dout p silu'(gate),   dskip_h = sum of d x over rows and P
//
// y, out, dout, dy and dx are contiguous. x, gate and dgate may be columns of wider matrices: their
// strides are the elements between two rows. T is float or Bf16; arithmetic and skip are fp32.
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
// Processes rows [begin, end).
template <typename T>
void StepGateForward(const StepGateRows<T>& rows, int64_t begin, int64_t end);
// Computes the gradients of rows [begin, end) and adds to `sums` [2, dim]: dbias, then da_log.
template <typename T>
void StepGateBackward(const StepGateGradRows<T>& rows, int64_t begin, int64_t end, float* sums);

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
void StepGateForward(const StepGateRows<T>& rows, cudaStream_t stream);
// `partials` is [NumRowPartials(num_rows), 2, dim].
template <typename T>
void StepGateBackward(const StepGateGradRows<T>& rows, const StepGateSums& sums, float* partials,
                      cudaStream_t stream);

template <typename T>
void SkipGateForward(const SkipGateRows<T>& rows, cudaStream_t stream);
// Overwrites dskip [H] or, if `added`, adds to it. `partials` is [NumRowPartials(num_rows),
// H P].
template <typename T>
void SkipGateBackward(const SkipGateGradRows<T>& rows, float* dskip, bool added, float* partials,
                      cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
