// Arguments of the product with a gate, shared by its LibTorch side, CPU loop and CUDA kernel.
// `map` is SiLU (SwiGLU) or the sigmoid (GLU):
//
//   out = map(gate) up,   dgate = dout up map'(gate),   dup = dout map(gate)
//
// T is float or Bf16; arithmetic is fp32. C++17 without LibTorch, because CUDA sources include it.
//
// gate, up and their gradients are contiguous if width = 0. Otherwise, they are columns of a
// matrix: rows of `width` elements, a multiple of kSwiGluColumns, at the distance of each tensor's
// stride. out and dout are contiguous.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "kernels/common/host_device.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

enum class GateMap : uint8_t { kSilu, kSigmoid };

constexpr int64_t kSwiGluColumns = 8;  // a pack of a CUDA thread is within one row

template <typename T>
struct SwiGluArgs {
  const T* gate = nullptr;
  const T* up = nullptr;
  T* out = nullptr;
  int64_t count = 0;  // number of elements
  int64_t width = 0, gate_stride = 0, up_stride = 0;
  GateMap map = GateMap::kSilu;
};
template <typename T>
struct SwiGluGradArgs {
  const T* gate = nullptr;
  const T* up = nullptr;
  const T* dout = nullptr;
  T* dgate = nullptr;
  T* dup = nullptr;
  int64_t count = 0;  // number of elements
  int64_t width = 0, gate_stride = 0, up_stride = 0, dgate_stride = 0, dup_stride = 0;
  GateMap map = GateMap::kSilu;
};

// Returns the offset of element i in rows of `width` elements that are `stride` apart.
HL_EVERYWHERE constexpr int64_t SwiGluPlace(int64_t i, int64_t width, int64_t stride) {
  return width == 0 || width == stride ? i : i / width * stride + i % width;
}

namespace cpu {
// Processes elements [begin, end).
template <typename T>
void SwiGluForward(const SwiGluArgs<T>& args, int64_t begin, int64_t end);
template <typename T>
void SwiGluBackward(const SwiGluGradArgs<T>& args, int64_t begin, int64_t end);
}  // namespace cpu
namespace cuda {
template <typename T>
void SwiGluForward(const SwiGluArgs<T>& args, cudaStream_t stream);
template <typename T>
void SwiGluBackward(const SwiGluGradArgs<T>& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace halflife::kernels
