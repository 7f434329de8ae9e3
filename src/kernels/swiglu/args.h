// The contract of SwiGLU's product between its binding, its CPU loop and its CUDA kernel.
//
//   out = silu(gate) up,   dgate = dout up silu'(gate),   dup = dout silu(gate)
//
// T: float or Bf16; arithmetic is fp32. C++17, no LibTorch: CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

template <typename T>
struct SwiGluArgs {  // each [count]
  const T* gate = nullptr;
  const T* up = nullptr;
  T* out = nullptr;
  int64_t count = 0;
};
template <typename T>
struct SwiGluGradArgs {  // each [count]
  const T* gate = nullptr;
  const T* up = nullptr;
  const T* dout = nullptr;
  T* dgate = nullptr;
  T* dup = nullptr;
  int64_t count = 0;
};

namespace cpu {
// Elements [begin, end).
void SwiGluForward(const SwiGluArgs<float>& args, int64_t begin, int64_t end);
void SwiGluForward(const SwiGluArgs<Bf16>& args, int64_t begin, int64_t end);
void SwiGluBackward(const SwiGluGradArgs<float>& args, int64_t begin, int64_t end);
void SwiGluBackward(const SwiGluGradArgs<Bf16>& args, int64_t begin, int64_t end);
}  // namespace cpu
namespace cuda {
void SwiGluForward(const SwiGluArgs<float>& args, cudaStream_t stream);
void SwiGluForward(const SwiGluArgs<Bf16>& args, cudaStream_t stream);
void SwiGluBackward(const SwiGluGradArgs<float>& args, cudaStream_t stream);
void SwiGluBackward(const SwiGluGradArgs<Bf16>& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
