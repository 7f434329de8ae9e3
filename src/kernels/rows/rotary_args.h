// The contract of the rotary encoding between its binding, its CPU loop and its CUDA kernel:
// channel j of a head turns with channel j + half by the angle whose cosine and sine the token's
// row of the table holds, both times a scale for xPos. The gradient turns back and keeps the scale.
// Queries and keys turn by one table, in one pass.
//
// T: float or Bf16; arithmetic is fp32. C++17, no LibTorch: CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// The heads of one tensor at all tokens, [tokens, num_heads, 2 half]: those of a token are dense.
template <typename T>
struct RotaryHeads {
  const T* x = nullptr;
  int64_t x_stride = 0;  // elements from a token to the next
  T* out = nullptr;      // contiguous
  int64_t num_heads = 0;
};

template <typename T>
struct RotaryTokens {
  RotaryHeads<T> heads[2];        // the second may have none
  const float* cos = nullptr;     // [R, half]
  const float* sin = nullptr;     // [R, half]
  const int64_t* rows = nullptr;  // [tokens], into the table
  int64_t num_tokens = 0, half = 0;
  float direction = 1;  // -1: the gradient
};

namespace cpu {
// Tokens [begin, end).
void Rotate(const RotaryTokens<float>& tokens, int64_t begin, int64_t end);
void Rotate(const RotaryTokens<Bf16>& tokens, int64_t begin, int64_t end);
}  // namespace cpu
namespace cuda {
void Rotate(const RotaryTokens<float>& tokens, cudaStream_t stream);
void Rotate(const RotaryTokens<Bf16>& tokens, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
