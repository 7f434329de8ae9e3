// The second stage of a weight's gradient on the device: out[i] = sum over p of partials[p, i], or
// out[i] + that sum, in an order that depends on the shape alone. C++17: CUDA sources include it.
#pragma once

#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels::cuda {

// partials [count, size], out [size]; zeros for a count of 0.
void SumPartials(const float* partials, int64_t count, int64_t size, float* out,
                 cudaStream_t stream, bool added = false);

}  // namespace halflife::kernels::cuda
