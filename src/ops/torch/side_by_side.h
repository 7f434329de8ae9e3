// Matrices that lie beside each other in memory, as one: a product with them all is one call. On a
// GPU that is one launch and one read of the other operand. On the CPU nothing is gained, measured:
// the product is no faster, and who needs its columns apart pays for copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/torch/column_places.h"

namespace halflife::ops {

// Whether products of rows x go by such matrices: on CUDA.
bool JoinsProducts(const at::Tensor& x);
// Everywhere while one of these lives, in all threads: what a GPU would be asked to do, for tests.
class JoinedProductsEverywhere {
 public:
  JoinedProductsEverywhere();
  ~JoinedProductsEverywhere();
  JoinedProductsEverywhere(const JoinedProductsEverywhere&) = delete;
  JoinedProductsEverywhere& operator=(const JoinedProductsEverywhere&) = delete;
};

// The numbers of contiguous matrices [rows_i, D] in runs of which each lies where the one before it
// ends, by ascending addresses.
std::vector<std::vector<size_t>> RunsOfRows(at::TensorList matrices);
// Such a run as one matrix [sum of rows, D]: a view, without a place in a graph.
at::Tensor RowsAsOne(at::TensorList run);

// [rows, sum of columns] of matrices [rows, columns_i]: a view where they are columns of one matrix
// side by side, else a copy.
at::Tensor ColumnsAsOne(const std::vector<at::Tensor>& matrices);

// Elements between the beginnings of adjacent rows of x, whose last `inner` >= 1 dimensions are
// those of a row and dense: the same between all rows, in the order of their numbers. Nothing where
// that does not hold.
std::optional<int64_t> RowStride(const at::Tensor& x, int64_t inner = 1);

// For kernels that take rows RowStride apart on the CPU, and dense ones alone on a GPU: x, and
// memory for what is written.
at::Tensor RowsApart(const at::Tensor& x);
at::Tensor EmptyIn(const ColumnPlace& place, const at::Tensor& like);

// Whether x and y [..., D] are the halves of the rows of one matrix [..., 2 D], in either order.
bool AreBeside(const at::Tensor& x, const at::Tensor& y);
// Memory for as many elements, beside each other in the same order where x and y are; else each is
// contiguous.
std::array<at::Tensor, 2> EmptyBeside(const at::Tensor& x, const at::Tensor& y);

}  // namespace halflife::ops
