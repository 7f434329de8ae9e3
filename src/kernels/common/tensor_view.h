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

}  // namespace halflife::kernels
