// Allocates one matrix whose column ranges are written by different kernels, so that the parts
// never have to be concatenated. It is used for the gradients of several consumers of one matrix
// product, whose backward reads all columns as one matrix, and for outputs that several calls
// produce.
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

// Hands out each column range of a matrix once. If a backward runs again, it gets new memory.
class SharedMatrix {
 public:
  explicit SharedMatrix(std::vector<int64_t> widths) : widths_(std::move(widths)) {}
  // Returns [rows, width of the part].
  at::Tensor Next(size_t part, int64_t rows, const at::TensorOptions& options);
  int64_t width(size_t part) const { return widths_[part]; }

 private:
  std::vector<int64_t> widths_;
  struct Memory {
    at::Tensor all;
    std::vector<bool> given;  // indexed by part
  };
  // Matrices with parts that are not handed out yet, oldest first. If two passes over all parts
  // interleave their calls, each gets its own matrix.
  std::vector<Memory> memories_;
};

// One column range, for one reader or writer. By default it has no shared matrix, and EmptyLike()
// allocates separate memory.
struct ColumnSlice {
  std::shared_ptr<SharedMatrix> columns = {};
  size_t part = 0;

  // Returns memory of x's shape, dtype and device: dense, or with the row stride of the shared
  // matrix. The columns of a row are the last dimension of x, or its last two: heads. CUDA kernels
  // store heads in units of 16 bytes, so heads whose rows are not aligned to that are dense.
  at::Tensor EmptyLike(const at::Tensor& x) const;
};

}  // namespace halflife::ops
