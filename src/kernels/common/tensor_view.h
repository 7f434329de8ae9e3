// A pointer and strides, by which CPU and CUDA kernels read and write tensors with heads. C++17
// without LibTorch, because CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/common/host_device.h"

namespace halflife::kernels {

// A tensor whose last dimension is contiguous. Strides are in elements. A null `data` means that
// the tensor is absent. A tensor with shared heads has fewer heads than H: head h reads index h *
// num / H.
struct TensorView {
  void* data = nullptr;
  int64_t stride_b = 0, stride_t = 0, stride_h = 0;
  DType dtype = DType::kF32;
};

// Returns the head, of `num_shared` heads of a tensor, that head `head` of `num_heads` reads.
HL_EVERYWHERE constexpr int SharedHead(int head, int num_shared, int num_heads) {
  return static_cast<int>(int64_t{1} * head * num_shared / num_heads);
}

// Returns true if a bulk copy can read x, of 2 bytes per element, as a matrix with rows [B T] and
// adjacent heads as columns [H dim].
inline bool IsMatrixOfRows(const TensorView& x, int batch, int heads, int dim) {
  constexpr int64_t kUnit = 8;  // elements of 16 bytes
  return x.stride_t > 0 && (heads - 1) * x.stride_h + dim <= x.stride_t &&
         x.stride_t % kUnit == 0 && x.stride_h % kUnit == 0 &&
         (batch == 1 || x.stride_b % x.stride_t == 0) &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

}  // namespace halflife::kernels
