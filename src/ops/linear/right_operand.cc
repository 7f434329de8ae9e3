#include "ops/linear/right_operand.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include "core/error.h"
#include "kernels/linear/linear_products.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {

// Measured: with 64 rows, packing the weight costs as much time as the faster product saves.
constexpr int64_t kMinMatmulRows = 128;

bool HasOwnMatmul(const at::Tensor& rows, const at::Tensor& weight) {
  const auto fits = [](const at::Tensor& x) {
    return x.is_cpu() && x.scalar_type() == at::kFloat && x.numel() > 0;
  };
  const bool differentiated =
      c10::GradMode::is_enabled() && (rows.requires_grad() || weight.requires_grad());
  return kernels::HasMatmul() && fits(rows) && fits(weight) && !differentiated &&
         rows.numel() / rows.size(-1) >= kMinMatmulRows;
}

RightOperand::RightOperand(const at::Tensor& matrix, bool transposed)
    : matrix_(transposed ? matrix.t() : matrix) {
  if (!kernels::HasMatmul() || matrix.numel() == 0) return;
  const at::Tensor contiguous = matrix.contiguous();
  const kernels::MatmulRight right = {.b = Elements<float>(contiguous),
                                      .depth = matrix_.size(0),
                                      .columns = matrix_.size(1),
                                      .transposed = transposed};
  panels_ = at::empty({kernels::MatmulPanelFloats(right)}, matrix.options());
  kernels::PackMatmulRight(right, MutableElements<float>(panels_));
}

void RightOperand::Multiply(const at::Tensor& a, at::Tensor& out, bool add) const {
  HL_CHECK(a.dim() == 2 && a.size(1) == matrix_.size(0), "a product of ", Describe(a), " with ",
           Describe(matrix_), ". Use [rows, ", matrix_.size(0), "].");
  if (!panels_.defined()) {
    add ? out.addmm_(a, matrix_) : at::mm_out(out, a, matrix_);
    return;
  }
  kernels::Matmul({.rows = a.size(0),
                   .depth = matrix_.size(0),
                   .columns = matrix_.size(1),
                   .a = Elements<float>(a),
                   .panels = Elements<float>(panels_),
                   .add = add,
                   .out = MutableElements<float>(out)});
}

}  // namespace halflife::ops
