// Treats matrices that are adjacent in memory as one matrix, so that a product with all of them is
// one call. On a GPU this is one launch and one read of the other operand. On the CPU it was
// measured to gain nothing: the product is not faster, and consumers that need separate columns pay
// for copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/torch/column_slices.h"

namespace halflife::ops {

// Returns true if products of rows x use joined matrices: on CUDA.
bool JoinsProducts(const at::Tensor& x);
// While an instance exists, products are joined on every device and in all threads. Tests use it to
// run the GPU's code path on the CPU.
class JoinedProductsEverywhere {
 public:
  JoinedProductsEverywhere();
  ~JoinedProductsEverywhere();
  JoinedProductsEverywhere(const JoinedProductsEverywhere&) = delete;
  JoinedProductsEverywhere& operator=(const JoinedProductsEverywhere&) = delete;
};

// Groups contiguous matrices [rows_i, D] such that each matrix in a group starts where the previous
// one ends. Returns the indices of each group, by ascending address.
std::vector<std::vector<size_t>> AdjacentRowGroups(at::TensorList matrices);
// Returns such a group as one matrix [sum of rows, D]: a view that is detached from the autograd
// graph.
at::Tensor JoinRows(at::TensorList run);

// Returns matrices [rows, columns_i] as one [rows, sum of columns]. The result is a view if they
// are adjacent columns of one matrix, else a copy.
at::Tensor ColumnsAsOne(const std::vector<at::Tensor>& matrices);

// Returns the number of elements between the starts of consecutive rows of x, or nullopt if the
// distance is not constant. A row consists of the last `inner` >= 1 dimensions and must be dense.
std::optional<int64_t> RowStride(const at::Tensor& x, int64_t inner = 1);

// For kernels that accept a constant row stride on the CPU but need dense rows on a GPU:
// StridedRows() returns x, or a contiguous copy if needed; EmptyIn() allocates the output.
at::Tensor StridedRows(const at::Tensor& x);
at::Tensor EmptyIn(const ColumnSlice& place, const at::Tensor& like);

// Returns true if x and y [..., D] are the two halves, in either order, of the rows of one matrix
// [..., 2 D].
bool AreAdjacentHalves(const at::Tensor& x, const at::Tensor& y);
// Allocates two tensors of the same shapes. They are adjacent in the same order if x and y are,
// else each is contiguous.
std::array<at::Tensor, 2> EmptyAdjacentHalves(const at::Tensor& x, const at::Tensor& y);

}  // namespace halflife::ops
