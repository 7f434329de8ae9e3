// Arguments of the decay gate, shared by its LibTorch side, CPU loops and CUDA kernels.
//
//   log_decay = max(scale ln sigmoid(x + bias), floor)
//   dx = dlog_decay scale sigmoid(-x - bias) above the floor, 0 at it; dbias = sum of dx over rows
//
// Rows are contiguous. T is float or Bf16, the type of x and dx only; arithmetic, bias and
// log_decay are fp32. C++17 without LibTorch, because CUDA sources include it.
#pragma once

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
// Processes rows [begin, end).
template <typename T>
void DecayGateForward(const DecayGateRows<T>& rows, int64_t begin, int64_t end);
// Computes the gradients of rows [begin, end) and adds theirs to dbias [dim].
template <typename T>
void DecayGateBackward(const DecayGateGradRows<T>& rows, int64_t begin, int64_t end, float* dbias);
}  // namespace cpu

namespace cuda {
template <typename T>
void DecayGateForward(const DecayGateRows<T>& rows, cudaStream_t stream);
// Overwrites dbias [dim]. `partials` holds NumRowPartials(num_rows) dim floats.
template <typename T>
void DecayGateBackward(const DecayGateGradRows<T>& rows, float* dbias, float* partials,
                       cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
