// Memory for the columns of one matrix, handed out part by part to kernels that each write some of
// them: nobody puts the parts together. So lie the gradients of columns that several kernels read,
// where the product that made the columns reads them all as one, and outputs of several calls.
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

namespace halflife::ops {

// Nobody gets a part of memory twice, so that a backward that is run again has memory of its own.
class ColumnPlaces {
 public:
  explicit ColumnPlaces(std::vector<int64_t> widths) : widths_(std::move(widths)) {}
  // [..., width of the part] with the leading dimensions, dtype and device of `like`.
  at::Tensor Next(size_t part, const at::Tensor& like);

 private:
  std::vector<int64_t> widths_;
  struct Memory {
    at::Tensor all;
    std::vector<bool> given;  // by part
  };
  // Of which not all is handed out, the oldest first: two passes over all parts, whose calls take
  // turns, have one each.
  std::vector<Memory> memories_;
};

// One of them, for one reader or writer of columns. Without columns, as by default: memory of its
// own.
struct ColumnPlace {
  std::shared_ptr<ColumnPlaces> columns = {};
  size_t part = 0;

  // Memory of x's shape, dense or with rows as far apart as all columns are wide.
  at::Tensor EmptyLike(const at::Tensor& x) const;
};

}  // namespace halflife::ops
