// Arguments of the softmax cross entropy over rows of logits, shared by its LibTorch side, CPU
// loops and CUDA kernel.
//
//   loss = ln Z - logits[target],   d(loss + w ln^2 Z) / d logits = (1 + 2 w ln Z) softmax - onehot
//
// C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// The gradient of the logits, which overwrites them. A row of a bf16 gradient takes the first half
// of the bytes of its row of logits.
enum class LogitGradient : uint8_t { kNone, kFp32, kBf16 };

struct LogitRows {
  float* logits = nullptr;  // [rows, vocab]; overwritten by the gradient, if one is requested
  // [rows]; negative: no target, and all results of the row are zero.
  const int64_t* targets = nullptr;
  float* loss = nullptr;           // [rows]
  float* log_partition = nullptr;  // [rows] ln Z
  int64_t num_rows = 0, vocab = 0;
  float z_loss_weight = 0;  // w
  LogitGradient gradient = LogitGradient::kNone;
};

namespace cpu {
// Throws an error (exit 3) for a target outside the vocabulary.
void CheckTarget(int64_t target, int64_t vocab);
// Processes rows [begin, end) and checks their targets. A gradient must be fp32.
void ReduceRows(const LogitRows& rows, int64_t begin, int64_t end);
}  // namespace cpu
namespace cuda {
// Computes losses and, if requested, gradients. A target outside the vocabulary makes its row's
// loss and gradient NaN.
void ReduceRows(const LogitRows& rows, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
