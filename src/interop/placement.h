// Where a parameter of ours lies in a tensor of another program: it is the tensor, or its
// transpose, or one of several of the same shape that are stacked in it, or some of its rows, in
// another order perhaps. Each is read out of the other range by range, with the memory of a few
// MiB.
//
//   const Placement keys = {.transposed = true, .part = 1, .num_parts = 3};  // of q, k and v
//   TensorShape(keys, {768, 768});                                           // {768, 2304}
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace halflife::interop {

struct Placement {
  bool transposed = false;  // theirs is a matrix [in, out]
  // Theirs stacks so many parameters along their outermost dimension, which is its innermost where
  // it is transposed; this one is the `part`-th, from 0.
  int64_t part = 0, num_parts = 1;
  // Theirs has so many dimensions of 1 before those of the parameter.
  int64_t leading_ones = 0;
  // Theirs has so many rows (0: the parameter's), of which the parameter's are those from
  // `first_row` on. Read alone, as the next: no class writes such.
  int64_t first_row = 0, num_rows = 0;
  // A rotation turns neighbouring rows together in theirs, 2i and 2i + 1 of so many (a head's),
  // which are i and i + pair_rows/2 of as many of the parameter's. 0: rows lie alike.
  int64_t pair_rows = 0;
};

// Elements [begin, end) of a flattened tensor.
using RangeReader = std::function<void(int64_t begin, int64_t end, float* out)>;

// `shape` is the parameter's, outermost first, here and below.
std::vector<int64_t> TensorShape(const Placement& placement, std::vector<int64_t> shape);
// Reads the parameter out of their `tensor`.
RangeReader ParameterReader(const Placement& placement, const std::vector<int64_t>& shape,
                            RangeReader tensor);
// Reads their tensor out of all its `parts`, in order. The parts of a transposed one are read anew
// for every range that is asked for: wide ranges are cheaper.
RangeReader TensorReader(const Placement& placement, const std::vector<int64_t>& shape,
                         std::vector<RangeReader> parts);

}  // namespace halflife::interop
