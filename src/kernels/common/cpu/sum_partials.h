// The second stage of a weight's gradient: out[i] = partials[0, i] + partials[1, i] + ..., or
// out[i] + partials[0, i] + ..., one after the other. Threads share out elements, never what is
// summed. On the device: kernels/common/cuda/sum_partials.h.
//
//   std::vector<float> partials(num_blocks * (taps + 1) * dim);  // [num_blocks, taps + 1, D]
//   SumPartials(partials.data(), num_blocks,
//               {{.out = dweight, .size = taps * dim, .rows = taps},  // [D, taps]
//                {.out = dbias, .size = dim, .added = true}});
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::kernels::cpu {

// Columns of the partial sums, and where their sums go.
template <typename C>
struct SumPlace {
  C* out = nullptr;  // [size]; null: nobody wants them
  int64_t size = 0;
  bool added = false;  // to what `out` holds
  // The columns are a matrix of so many rows, whose transpose `out` is.
  int64_t rows = 1;
};
template <typename C>
using SumPlaces = std::vector<SumPlace<C>>;

// partials [count, sum of sizes]: the columns of one place after those of another. Zeros for a
// count of 0. C: float or double.
template <typename C>
void SumPartials(const C* partials, int64_t count, const SumPlaces<C>& to);
// partials [count, size], out [size].
template <typename C>
void SumPartials(const C* partials, int64_t count, int64_t size, C* out, bool added = false);

}  // namespace halflife::kernels::cpu
