// Arguments of the rotary encoding, shared by its LibTorch side, CPU loop and CUDA kernel. Channels
// j and j + half of a head are rotated by the angle whose cosine and sine are in the token's row of
// the table; both may include a scale, for xPos. Channels from 2 half on are copied. The gradient
// rotates in the other direction and keeps the scale. Queries and keys use one table and one pass.
//
// T is float or Bf16; arithmetic is fp32. C++17 without LibTorch, because CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// The heads of one tensor at all tokens, [tokens, num_heads, head_dim]. The heads of a token are
// dense. Strides are distances between tokens, in elements.
template <typename T>
struct RotaryHeads {
  const T* x = nullptr;
  int64_t x_stride = 0;
  T* out = nullptr;
  int64_t out_stride = 0;
  int64_t num_heads = 0;
};

template <typename T>
struct RotaryTokens {
  RotaryHeads<T> heads[2];        // the second may have no heads
  const float* cos = nullptr;     // [R, half]
  const float* sin = nullptr;     // [R, half]
  const int64_t* rows = nullptr;  // [tokens], rows of the table
  int64_t num_tokens = 0, half = 0;
  int64_t head_dim = 0;  // at least 2 half
  float direction = 1;   // -1 for the gradient
};

namespace cpu {
// Processes tokens [begin, end).
template <typename T>
void Rotate(const RotaryTokens<T>& tokens, int64_t begin, int64_t end);
}  // namespace cpu
namespace cuda {
template <typename T>
void Rotate(const RotaryTokens<T>& tokens, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
