// Converts tensors and streams to the types of `dist` and of the CUDA kernels, which do not depend
// on LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/tensor_ref.h"

namespace halflife::ops {

// Throws Error kInternal for a dtype that neither `dist` nor the kernels support.
DType DTypeOf(const at::Tensor& tensor);

// Returns a borrowed view of a contiguous tensor's memory.
TensorRef RefOf(const at::Tensor& tensor);

// Returns the memory of a contiguous tensor as bytes [nbytes]. A tensor of one element is
// contiguous with any strides, but LibTorch's view as bytes requires a stride of 1.
at::Tensor BytesOf(const at::Tensor& tensor);

// Returns LibTorch's current stream on the device, or null on the CPU.
cudaStream_t CurrentStream(Device device);

}  // namespace halflife::ops
