// The second stage of a parameter's gradient: out[i] = partials[0, i] + partials[1, i] + ..., or
// out[i] + that sum. The order of the sum depends only on the shape. On the CPU, threads divide the
// elements among themselves, never the terms of a sum. C++17, because CUDA sources include it.
//
//   std::vector<float> partials(num_blocks * (taps + 1) * dim);  // [num_blocks, taps + 1, D]
//   cpu::SumPartials(partials.data(), num_blocks,
//                    {{.out = dweight, .size = taps * dim, .rows = taps},  // [D, taps]
//                     {.out = dbias, .size = dim, .added = true}});
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace halflife::kernels {

// Columns of the partial sums, and the destination of their sums.
template <typename C>
struct SumPlace {
  C* out = nullptr;  // [size]; null: not computed
  int64_t size = 0;
  bool added = false;  // true: add to the contents of `out`
  // The columns form a matrix of this many rows, and `out` is its transpose.
  int64_t rows = 1;
};

namespace cpu {

// Rows of a partial sum. Fixed, so that a sum does not depend on the number of threads.
constexpr int64_t kRowsPerPartial = 128;

template <typename C>
using SumPlaces = std::vector<SumPlace<C>>;

// partials is [count, sum of sizes]: the columns of the destinations follow one another. A count of
// 0 gives zeros. C is float or double.
template <typename C>
void SumPartials(const C* partials, int64_t count, const SumPlaces<C>& to);
// The same for one destination: partials [count, size], out [size].
template <typename C>
void SumPartials(const C* partials, int64_t count, int64_t size, C* out, bool added = false);

}  // namespace cpu

namespace cuda {

// For kernels whose blocks stride over the rows: the rows that a block processes at a time, and the
// number of partial sums, which is the number of blocks in the grid's second dimension.
constexpr int64_t kPartialRows = 8;
inline int64_t NumRowPartials(int64_t num_rows) {
  return std::min<int64_t>(128, (num_rows + kPartialRows - 1) / kPartialRows);
}

constexpr int kSumPlaces = 9;  // maximum per launch
struct SumPlaces {
  SumPlace<float> places[kSumPlaces];
};

// As on the CPU.
void SumPartials(const float* partials, int64_t count, const SumPlaces& to, cudaStream_t stream);
void SumPartials(const float* partials, int64_t count, int64_t size, float* out,
                 cudaStream_t stream, bool added = false);

}  // namespace cuda

}  // namespace halflife::kernels
