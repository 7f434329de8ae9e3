// A weight as the right operand of fp32 products on the CPU. If the current instruction set has a
// kernel (linear_products.h), the weight is packed once into that kernel's layout. Otherwise BLAS
// is used.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::ops {

class RightOperand {
 public:
  // `matrix` is [depth, columns] or, if transposed, [columns, depth]. The object keeps a reference.
  RightOperand(const at::Tensor& matrix, bool transposed);

  // Computes out [rows, columns] = a [rows, depth] B, or out += a B. Both are contiguous.
  void Multiply(const at::Tensor& a, at::Tensor& out, bool add = false) const;

 private:
  at::Tensor matrix_;  // [depth, columns], a view
  at::Tensor panels_;  // undefined: use BLAS
};

// Returns true if the product of rows [..., D] with a weight should use this class: fp32, enough
// rows, and no gradient is recorded.
bool HasOwnMatmul(const at::Tensor& rows, const at::Tensor& weight);

// Returns true if the product of rows [..., D] with a weight [N, D] should be SkinnyMatmul(): fp32
// or bf16 on the CPU, few rows, and inference mode. Training does not use it, because the bits of
// its products must not change with the number of a rank's rows.
bool HasSkinnyMatmul(const at::Tensor& rows, const at::Tensor& weight);
// Returns rows weight^T, [..., N], in `dtype`. Sums are fp32 and are rounded once. The bits of a
// row do not depend on the other rows.
at::Tensor SkinnyMatmul(const at::Tensor& rows, const at::Tensor& weight, at::ScalarType dtype);

}  // namespace halflife::ops
