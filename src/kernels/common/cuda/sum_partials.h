// The second stage of a weight's gradient on the device: out[i] = sum over p of partials[p, i], or
// out[i] + that sum, in an order that depends on the shape alone. C++17: CUDA sources include it.
#pragma once

#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels::cuda {

// Columns of the partial sums, and where their sums go.
struct SumPlace {
  float* out = nullptr;  // [size]; null: nobody wants them
  int64_t size = 0;
  bool added = false;  // to what `out` holds
  // The columns are a matrix of so many rows, whose transpose `out` is.
  int64_t rows = 1;
};
constexpr int kSumPlaces = 9;  // at most, of a launch
struct SumPlaces {
  SumPlace places[kSumPlaces];
};

// partials [count, sum of sizes]: the columns of one place after those of another. Zeros for a
// count of 0.
void SumPartials(const float* partials, int64_t count, const SumPlaces& to, cudaStream_t stream);
// partials [count, size], out [size].
void SumPartials(const float* partials, int64_t count, int64_t size, float* out,
                 cudaStream_t stream, bool added = false);

}  // namespace halflife::kernels::cuda
