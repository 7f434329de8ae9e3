#include "ops/torch/side_by_side.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>

namespace halflife::ops {
namespace {

std::atomic<int> everywhere = 0;  // number of live JoinedProductsEverywhere

// Returns true if b starts `distance` elements after a in the same storage.
bool Follows(const at::Tensor& a, const at::Tensor& b, int64_t distance) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.scalar_type() == b.scalar_type() && b.storage_offset() - a.storage_offset() == distance;
}

bool IsNextRows(const at::Tensor& above, const at::Tensor& below) {
  return above.is_contiguous() && below.is_contiguous() && above.size(1) == below.size(1) &&
         Follows(above, below, above.numel());
}

}  // namespace

bool JoinsProducts(const at::Tensor& x) { return x.is_cuda() || everywhere > 0; }
JoinedProductsEverywhere::JoinedProductsEverywhere() { ++everywhere; }
JoinedProductsEverywhere::~JoinedProductsEverywhere() { --everywhere; }

std::vector<std::vector<size_t>> AdjacentRowGroups(at::TensorList matrices) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // std::less is a total order even for pointers into different allocations.
  std::ranges::stable_sort(order, std::less<const void*>(),
                           [&](size_t i) { return matrices[i].const_data_ptr(); });
  std::vector<std::vector<size_t>> runs;
  for (const size_t i : order) {
    if (runs.empty() || !IsNextRows(matrices[runs.back().back()], matrices[i])) runs.emplace_back();
    runs.back().push_back(i);
  }
  return runs;
}

at::Tensor JoinRows(at::TensorList run) {
  const int64_t width = run[0].size(1);
  int64_t rows = 0;
  for (const at::Tensor& matrix : run) rows += matrix.size(0);
  return at::as_strided(run[0].detach(), {rows, width}, {width, 1});
}

at::Tensor ColumnsAsOne(const std::vector<at::Tensor>& matrices) {
  if (matrices.size() == 1) return matrices[0];
  const at::Tensor& first = matrices[0];
  int64_t columns = 0;
  bool one = true;
  for (const at::Tensor& matrix : matrices) {
    one = one && matrix.stride(1) == 1 && matrix.stride(0) == first.stride(0) &&
          Follows(first, matrix, columns);
    columns += matrix.size(1);
  }
  if (!one || columns > first.stride(0)) return at::cat(matrices, 1);
  return at::as_strided(first, {first.size(0), columns}, first.strides());
}

std::optional<int64_t> RowStride(const at::Tensor& x, int64_t inner) {
  int64_t dense = 1;
  int64_t i = x.dim() - 1;
  for (; i >= x.dim() - inner; dense *= x.size(i), --i)
    if (x.size(i) > 1 && x.stride(i) != dense) return std::nullopt;
  std::optional<int64_t> stride;  // row stride; dimensions of size 0 or 1 do not constrain it
  for (int64_t rows = 1; i >= 0; rows *= std::max<int64_t>(x.size(i), 1), --i) {
    if (x.size(i) <= 1) continue;
    if (!stride.has_value()) stride = x.stride(i);
    if (x.stride(i) != *stride * rows) return std::nullopt;
  }
  return stride.value_or(dense);
}

at::Tensor StridedRows(const at::Tensor& x) {
  return x.is_cpu() && RowStride(x).has_value() ? x : x.contiguous();
}

at::Tensor EmptyIn(const ColumnSlice& place, const at::Tensor& like) {
  return (like.is_cpu() ? place : ColumnSlice()).EmptyLike(like);
}

bool AreAdjacentHalves(const at::Tensor& x, const at::Tensor& y) {
  if (x.dim() < 2 || x.numel() == 0 || x.sizes() != y.sizes()) return false;
  const int64_t width = x.size(-1);
  const auto halves = [width](const at::Tensor& rows) {
    return rows.numel() == width || RowStride(rows) == 2 * width;
  };
  return halves(x) && halves(y) && (Follows(x, y, width) || Follows(y, x, width));
}

std::array<at::Tensor, 2> EmptyAdjacentHalves(const at::Tensor& x, const at::Tensor& y) {
  if (!AreAdjacentHalves(x, y))
    return {at::empty_like(x, at::MemoryFormat::Contiguous),
            at::empty_like(y, at::MemoryFormat::Contiguous)};
  std::vector<int64_t> shape = x.sizes().vec();
  const int64_t width = shape.back();
  shape.back() = 2 * width;
  const at::Tensor both = at::empty(shape, x.options().requires_grad(false));
  const at::Tensor first = both.narrow(-1, 0, width), second = both.narrow(-1, width, width);
  if (Follows(x, y, width)) return {first, second};
  return {second, first};
}

}  // namespace halflife::ops
