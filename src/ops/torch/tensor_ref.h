// Tensors and streams as `dist` and the kernels' CUDA sides take them, who know no LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/tensor_ref.h"

namespace halflife::ops {

// Error kInternal for a dtype that neither `dist` nor a kernel knows.
DType DTypeOf(const at::Tensor& tensor);

// A borrowed view of a contiguous tensor's memory.
TensorRef RefOf(const at::Tensor& tensor);

// The same memory as bytes [nbytes], of a contiguous tensor. (One of a single element is contiguous
// whatever its strides, and LibTorch's view as bytes wants that of 1.)
at::Tensor BytesOf(const at::Tensor& tensor);

// The stream that LibTorch works on; null on the CPU.
cudaStream_t CurrentStream(Device device);

}  // namespace halflife::ops
