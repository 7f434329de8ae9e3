// Gradients of the columns of one matrix, beside each other as the columns are. Several kernels
// read the columns, and each writes its gradient where the product that made the matrix reads them
// all as one: nobody puts them together.
//
//   const auto parts = LinearInParts(x, weight, {inner, inner});
//   const at::Tensor y = SwiGlu(parts[0].y, up, parts[0].gradient);
//   // Its backward writes the gradient of parts[0].y to:
//   const at::Tensor dgate = parts[0].gradient.EmptyLike(parts[0].y);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace halflife::kernels {

// Of the columns of one matrix: memory for a gradient of all, handed out part by part. Nobody gets
// a part of memory twice, so that a backward that is run again has memory of its own.
class GradientColumns {
 public:
  explicit GradientColumns(std::vector<int64_t> widths) : widths_(std::move(widths)) {}
  // [..., width of the part] with the leading dimensions, dtype and device of `like`.
  at::Tensor Next(size_t part, const at::Tensor& like);

 private:
  std::vector<int64_t> widths_;
  at::Tensor all_;  // while not all of it is handed out
  std::vector<bool> given_;
};

// One of them, for the one reader of a column. Without columns, as by default: memory of its own.
struct GradientColumn {
  std::shared_ptr<GradientColumns> columns = {};
  size_t part = 0;

  // Memory of x's shape, dense or with rows as far apart as all columns are wide.
  at::Tensor EmptyLike(const at::Tensor& x) const;
};

}  // namespace halflife::kernels
