// Arguments of dropout, shared by its CPU loop and CUDA kernel: out = 0 if the draw of (sample,
// position, channel) is below the threshold, else scale x. A dropped infinity becomes 0 too. The
// gradient is the same function of the output's gradient.
//
// T is float or Bf16; arithmetic is fp32. C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "core/philox.h"
#include "kernels/common/dropout_draws.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

template <typename T>
struct DropoutArgs {
  const T* x = nullptr;               // [tokens, dim], tokens = rows seq_len
  T* out = nullptr;                   // like x
  const uint64_t* samples = nullptr;  // [rows] global sample numbers, on x's device
  int64_t num_tokens = 0, seq_len = 0, dim = 0;
  int64_t first_position = 0;  // position, within its row, of the first token
  RandomKey key = {};
  uint32_t threshold = 0;
  float scale = 1;  // 1 / (1 - rate)
};

namespace cpu {
// Processes tokens [begin, end).
template <typename T>
void Dropout(const DropoutArgs<T>& args, int64_t begin, int64_t end);
}  // namespace cpu
namespace cuda {
template <typename T>
void Dropout(const DropoutArgs<T>& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
