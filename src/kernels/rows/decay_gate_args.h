// Arguments of the decay gate, shared by its LibTorch side, CPU loops and CUDA kernels.
//
//   log_decay = max(scale ln sigmoid(x + bias), floor)
//   dx = dlog_decay scale sigmoid(-x - bias) above the floor, 0 at it; dbias = sum of dx over rows
//
// Rows are contiguous. T is float or Bf16, the type of x and dx only; arithmetic, bias and
// log_decay are fp32. C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// The parameters of the gate.
struct DecayGateForm {
  const float* bias = nullptr;  // [dim]
  float scale = 1, floor = 0;   // a floor of -infinity has no effect
};

template <typename T>
struct DecayGateRows {
  const T* x = nullptr;        // [rows, dim]
  float* log_decay = nullptr;  // [rows, dim]
  DecayGateForm form;
  int64_t num_rows = 0, dim = 0;
};
template <typename T>
struct DecayGateGradRows {
  const T* x = nullptr;               // [rows, dim]
  const float* dlog_decay = nullptr;  // [rows, dim]
  T* dx = nullptr;                    // [rows, dim]
  DecayGateForm form;
  int64_t num_rows = 0, dim = 0;
};

namespace cpu {
// Rows per partial sum of the bias's gradient. Fixed, so that the sum does not depend on the number
// of threads.
constexpr int64_t kGateRowsPerBlock = 128;

// Processes rows [begin, end).
template <typename T>
void DecayGateForward(const DecayGateRows<T>& rows, int64_t begin, int64_t end);
// Computes the gradients of rows [begin, end) and adds theirs to dbias [dim].
template <typename T>
void DecayGateBackward(const DecayGateGradRows<T>& rows, int64_t begin, int64_t end, float* dbias);
}  // namespace cpu

namespace cuda {
// Rows that a block processes at a time, and the maximum number of partial sums of the bias's
// gradient: one for each row of blocks.
constexpr int64_t kGateBlockRows = 8, kGateMaxPartials = 128;
inline int64_t NumGatePartials(int64_t num_rows) {
  return std::min(kGateMaxPartials, (num_rows + kGateBlockRows - 1) / kGateBlockRows);
}

template <typename T>
void DecayGateForward(const DecayGateRows<T>& rows, cudaStream_t stream);
// Overwrites dbias [dim]. `partials` holds NumGatePartials(num_rows) dim floats.
template <typename T>
void DecayGateBackward(const DecayGateGradRows<T>& rows, float* dbias, float* partials,
                       cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
