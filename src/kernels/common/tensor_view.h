// Tensors of heads as CPU and CUDA kernels read and write them: a pointer and strides. C++17, no
// LibTorch: CUDA sources include it.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/common/host_device.h"

namespace halflife::kernels {

// A tensor whose last dimension is contiguous. Strides in elements; `data` null: absent. One whose
// heads are shared has fewer heads than H: head h reads index h * num / H.
struct TensorView {
  void* data = nullptr;
  int64_t stride_b = 0, stride_t = 0, stride_h = 0;
  DType dtype = DType::kF32;
};

// The head that head `head` of `num_heads` reads, of a tensor that has `num_shared` of them.
HL_EVERYWHERE constexpr int SharedHead(int head, int num_shared, int num_heads) {
  return static_cast<int>(int64_t{1} * head * num_shared / num_heads);
}

}  // namespace halflife::kernels
