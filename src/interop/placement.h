// Where a halflife parameter is located in a tensor of another program. The parameter is the
// tensor, or its transpose, or one of several parameters of the same shape that are stacked in it,
// or some of its rows, possibly reordered. Ranges of one are read from the other with a few MiB of
// memory.
//
//   const Placement keys = {.transposed = true, .part = 1, .num_parts = 3};  // part 1 of q, k, v
//   TensorShape(keys, {768, 768});                                           // {768, 2304}
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace halflife::interop {

struct Placement {
  bool transposed = false;  // The tensor is a matrix [in, out].
  // The tensor stacks `num_parts` parameters along their outermost dimension (the innermost one of
  // a transposed tensor). This parameter is number `part`, from 0.
  int64_t part = 0, num_parts = 1;
  // The tensor has this many dimensions of size 1 before those of the parameter.
  int64_t leading_ones = 0;
  // The tensor has `num_rows` rows (0: as many as the parameter), and the parameter's rows start at
  // `first_row`. Import only, like pair_rows: no exported class needs it.
  int64_t first_row = 0, num_rows = 0;
  // The number of rows of a head if the other program rotates neighbouring rows, 2i and 2i + 1,
  // which are rows i and i + pair_rows/2 of the parameter's head. 0: rows have the same order.
  int64_t pair_rows = 0;
};

// Reads elements [begin, end) of a flattened tensor into `out`.
using RangeReader = std::function<void(int64_t begin, int64_t end, float* out)>;

// `shape` is the parameter's, outermost first, here and below. Returns the shape of the tensor.
std::vector<int64_t> TensorShape(const Placement& placement, std::vector<int64_t> shape);
// Reads the parameter from the other program's `tensor`.
RangeReader ParameterReader(const Placement& placement, const std::vector<int64_t>& shape,
                            RangeReader tensor);
// Reads the other program's tensor from all of its `parts`, in order. For a transposed tensor, the
// parts are read again for every requested range, so wide ranges are cheaper.
RangeReader TensorReader(const Placement& placement, const std::vector<int64_t>& shape,
                         std::vector<RangeReader> parts);

}  // namespace halflife::interop
