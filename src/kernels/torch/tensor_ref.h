// Tensors and streams as `dist` and the kernels' CUDA sides take them, who know no LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/tensor_ref.h"

namespace halflife::kernels {

// Error kInternal for a dtype that neither `dist` nor a kernel knows.
DType DTypeOf(const at::Tensor& tensor);

// A borrowed view of a contiguous tensor's memory.
TensorRef RefOf(const at::Tensor& tensor);

// The stream that LibTorch works on; null on the CPU.
cudaStream_t CurrentStream(Device device);

}  // namespace halflife::kernels
