// Arguments of the gates of a delta rule layer (Yang et al., 2025; Kimi Team, 2025): the decay and
// the write strength beta of each token, in one pass. Shared by their LibTorch side, CPU loops and
// CUDA kernels.
//
//   log_decay = -r softplus(z),   z = x + bias,   r = e^a_log
//   log_decay = bound sigmoid(r z)                   if bound < 0
//   beta = beta_scale sigmoid(b)
//
// Backward, with s = sigmoid(r z) in the second form:
//   dx = -dlog_decay r sigmoid(z), or dlog_decay bound s (1 - s) r;   dbias = sum of dx over rows
//   da_log = sum of dlog_decay log_decay, or of dx z, over rows and the channels of a head
//   db = dbeta beta_scale sigmoid(b) (1 - sigmoid(b))
//
// A head has one decay, or one per channel: a_log has one value per head, bias one per decay. x, b
// and their gradients may be columns of wider matrices: their strides are the elements between two
// rows. log_decay, beta and their gradients are contiguous. T is float or Bf16, the type of x, b
// and their gradients only; everything else is fp32. C++17 without LibTorch, because CUDA sources
// include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"
#include "kernels/common/sum_partials.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// The parameters of the gates, and their numbers of columns D = num_heads channels and H.
struct DeltaGatesForm {
  const float* bias = nullptr;   // [D]
  const float* a_log = nullptr;  // [num_heads] on a GPU
  const float* rates = nullptr;  // [D], for the CPU loops: e^{a_log} of each column
  float bound = 0;               // 0: none
  float beta_scale = 1;
  int64_t num_heads = 0, channels = 1;  // num_heads = 0: no decay
  int64_t num_betas = 0;                // H; 0: no beta
  HL_EVERYWHERE int64_t num_decays() const { return num_heads * channels; }  // D
};

template <typename T>
struct DeltaGatesRows {
  const T* x = nullptr;        // [rows, D]
  const T* b = nullptr;        // [rows, H]
  float* log_decay = nullptr;  // [rows, D]
  float* beta = nullptr;       // [rows, H]
  DeltaGatesForm form;
  int64_t num_rows = 0, x_stride = 0, b_stride = 0;
};
template <typename T>
struct DeltaGatesGradRows {
  const T* x = nullptr;               // [rows, D]
  const T* b = nullptr;               // [rows, H]
  const float* dlog_decay = nullptr;  // [rows, D]
  const float* dbeta = nullptr;       // [rows, H]
  T* dx = nullptr;                    // [rows, D]
  T* db = nullptr;                    // [rows, H]
  DeltaGatesForm form;
  int64_t num_rows = 0, x_stride = 0, b_stride = 0, dx_stride = 0, db_stride = 0;
};
// The sums of the backward. Null: not computed. `added`: add to the contents.
struct DeltaGatesSums {
  float* dbias = nullptr;   // [D]
  float* da_log = nullptr;  // [num_heads]
  bool dbias_added = false, da_log_added = false;
};

namespace cpu {
// Processes rows [begin, end).
template <typename T>
void DeltaGatesForward(const DeltaGatesRows<T>& rows, int64_t begin, int64_t end);
// Computes the gradients of rows [begin, end) and adds to `sums` [2, D]: dbias, then da_log, the
// latter for each column.
template <typename T>
void DeltaGatesBackward(const DeltaGatesGradRows<T>& rows, int64_t begin, int64_t end, float* sums);
}  // namespace cpu

namespace cuda {
inline int64_t DeltaGatesWorkspaceFloats(int64_t num_rows, const DeltaGatesForm& form) {
  return NumRowPartials(num_rows) * (form.num_decays() + form.num_heads);
}

template <typename T>
void DeltaGatesForward(const DeltaGatesRows<T>& rows, cudaStream_t stream);
// `workspace` holds DeltaGatesWorkspaceFloats() floats.
template <typename T>
void DeltaGatesBackward(const DeltaGatesGradRows<T>& rows, const DeltaGatesSums& sums,
                        float* workspace, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
