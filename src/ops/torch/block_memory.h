// The shared-memory limit of a GPU's thread blocks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::ops {

// Returns the largest number of bytes of shared memory that one block on x's GPU can request.
// Blocks get 48 KiB without opting in. Only available in builds with CUDA.
int64_t SharedMemoryPerBlock(const at::Tensor& x);

}  // namespace halflife::ops
