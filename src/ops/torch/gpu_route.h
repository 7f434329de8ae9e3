// Helpers for choosing a kernel on a GPU: the shared memory that a block can use, and a log of the
// chosen kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace halflife::ops {

// Returns the largest number of bytes of shared memory that one block on x's GPU can request.
// Blocks get 48 KiB without opting in. Only available in builds with CUDA.
int64_t SharedMemoryPerBlock(const at::Tensor& x);

// Writes to the debug log which kernels of a family run on a GPU and, if they are not the fastest
// ones, why. Each route is logged once per process.
void LogRoute(const char* family, const std::string& route);

}  // namespace halflife::ops
