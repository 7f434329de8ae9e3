// The second stage of a weight's gradient on the device: out[i] = sum over p of partials[p, i], or
// out[i] + that sum. The order of the sum depends only on the shape. C++17, because CUDA sources
// include it.
#pragma once

#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels::cuda {

// Columns of the partial sums, and the destination of their sums.
struct SumPlace {
  float* out = nullptr;  // [size]; null: not computed
  int64_t size = 0;
  bool added = false;  // true: add to the contents of `out`
  // The columns form a matrix of this many rows, and `out` is its transpose.
  int64_t rows = 1;
};
constexpr int kSumPlaces = 9;  // maximum per launch
struct SumPlaces {
  SumPlace places[kSumPlaces];
};

// partials is [count, sum of sizes]: the columns of the destinations follow one another. A count of
// 0 gives zeros.
void SumPartials(const float* partials, int64_t count, const SumPlaces& to, cudaStream_t stream);
// The same for one destination: partials [count, size], out [size].
void SumPartials(const float* partials, int64_t count, int64_t size, float* out,
                 cudaStream_t stream, bool added = false);

}  // namespace halflife::kernels::cuda
