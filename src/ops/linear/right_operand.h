// A weight as the right operand of products on the CPU, fp32: brought into the layout of our own
// kernel once (matmul.h) where the instruction set in use has one, else left to BLAS.
//
//   const RightOperand w(weight, /*transposed=*/true);   // weight [N, D]
//   w.Multiply(x, y);                                    // y [tokens, N] = x [tokens, D] weight^T
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::ops {

class RightOperand {
 public:
  // [depth, columns] or, transposed, [columns, depth], which it keeps.
  RightOperand(const at::Tensor& matrix, bool transposed);

  // out [rows, columns] = a [rows, depth] B, or out += a B; both contiguous.
  void Multiply(const at::Tensor& a, at::Tensor& out, bool add = false) const;

 private:
  at::Tensor matrix_;  // [depth, columns], a view
  at::Tensor panels_;  // undefined: BLAS's turn
};

// Whether the product of rows [..., D] with a weight should go this way: fp32, enough of them, and
// nobody differentiates it.
bool HasOwnMatmul(const at::Tensor& rows, const at::Tensor& weight);

}  // namespace halflife::ops
