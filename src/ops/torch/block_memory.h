// What a block of a GPU's kernel may ask for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::ops {

// Most bytes of shared memory on x's GPU, where kernels have asked for more than the 48 KiB that
// come without. Builds with CUDA alone have it.
int64_t SharedMemoryPerBlock(const at::Tensor& x);

}  // namespace halflife::ops
