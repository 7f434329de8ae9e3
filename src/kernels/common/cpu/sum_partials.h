// The second stage of a weight's gradient: out[i] = partials[0, i] + partials[1, i] + ..., or
// out[i] + partials[0, i] + ..., added in this order. Threads divide the elements among themselves,
// never the terms of a sum. The device version is kernels/common/cuda/sum_partials.h.
//
//   std::vector<float> partials(num_blocks * (taps + 1) * dim);  // [num_blocks, taps + 1, D]
//   SumPartials(partials.data(), num_blocks,
//               {{.out = dweight, .size = taps * dim, .rows = taps},  // [D, taps]
//                {.out = dbias, .size = dim, .added = true}});
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::kernels::cpu {

// Columns of the partial sums, and the destination of their sums.
template <typename C>
struct SumPlace {
  C* out = nullptr;  // [size]; null: not computed
  int64_t size = 0;
  bool added = false;  // true: add to the contents of `out`
  // The columns form a matrix of this many rows, and `out` is its transpose.
  int64_t rows = 1;
};
template <typename C>
using SumPlaces = std::vector<SumPlace<C>>;

// partials is [count, sum of sizes]: the columns of the destinations follow one another. A count of
// 0 gives zeros. C is float or double.
template <typename C>
void SumPartials(const C* partials, int64_t count, const SumPlaces<C>& to);
// The same for one destination: partials [count, size], out [size].
template <typename C>
void SumPartials(const C* partials, int64_t count, int64_t size, C* out, bool added = false);

}  // namespace halflife::kernels::cpu
