// The contract of the softmax cross entropy over rows of logits between its binding, its CPU loops
// and its CUDA kernel.
//
//   loss = ln Z - logits[target],   d(loss + w ln^2 Z) / d logits = (1 + 2 w ln Z) softmax - onehot
//
// C++17, no LibTorch: CUDA sources include it.
#pragma once

#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

struct LogitRows {
  float* logits = nullptr;           // [rows, vocab]; overwritten by the gradient, with `gradient`
  const int64_t* targets = nullptr;  // [rows]; negative: no target, and zeros for it
  float* loss = nullptr;             // [rows]
  float* log_partition = nullptr;    // [rows] ln Z
  int64_t num_rows = 0, vocab = 0;
  float z_loss_weight = 0;  // w
  bool gradient = false;
};

namespace cpu {
// Error (exit 3) for a target outside the vocabulary.
void CheckTarget(int64_t target, int64_t vocab);
// Rows [begin, end); checks the targets.
void ReduceRows(const LogitRows& rows, int64_t begin, int64_t end);
}  // namespace cpu
namespace cuda {
// A target outside the vocabulary makes its row's loss and gradient NaN.
void ReduceRows(const LogitRows& rows, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
