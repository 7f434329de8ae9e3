#include "ops/linear/linear_internal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <type_traits>
#include <vector>

#include "core/error.h"
#include "kernels/linear/linear_products.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {

// Measured: with 64 rows, packing the weight costs as much time as the faster product saves.
constexpr int64_t kMinMatmulRows = 128;
// A group of texts that are decoded together. With up to 64 rows the kernel is faster than BLAS as
// well, but scores of short pieces of a text then round differently from those of the whole text.
constexpr int64_t kMaxSkinnyRows = 8;

bool HasOwnMatmul(const at::Tensor& rows, const at::Tensor& weight) {
  const auto fits = [](const at::Tensor& x) {
    return x.is_cpu() && x.scalar_type() == at::kFloat && x.numel() > 0;
  };
  const bool differentiated =
      c10::GradMode::is_enabled() && (rows.requires_grad() || weight.requires_grad());
  return kernels::HasMatmul() && fits(rows) && fits(weight) && !differentiated &&
         rows.numel() / rows.size(-1) >= kMinMatmulRows;
}

bool HasSkinnyMatmul(const at::Tensor& rows, const at::Tensor& weight) {
  const at::ScalarType dtype = weight.scalar_type();
  return c10::InferenceMode::is_enabled() && kernels::HasSkinnyMatmul() && rows.is_cpu() &&
         weight.is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16) &&
         rows.scalar_type() == dtype && rows.numel() > 0 && weight.numel() > 0 &&
         rows.numel() / rows.size(-1) <= kMaxSkinnyRows;
}

at::Tensor SkinnyMatmul(const at::Tensor& rows, const at::Tensor& weight, at::ScalarType dtype) {
  HL_CHECK(rows.size(-1) == weight.size(1), "a product of ", Describe(rows), " with the weight ",
           Describe(weight), ". Use rows of ", weight.size(1), " elements.");
  const at::Tensor a = rows.to(at::kFloat).contiguous(), w = weight.contiguous();
  std::vector<int64_t> shape = rows.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor out = at::empty(shape, a.options());
  const auto multiply = [&](const auto* data) {
    kernels::SkinnyMatmul<std::remove_cvref_t<decltype(*data)>>(
        {.rows = rows.numel() / rows.size(-1),
         .depth = weight.size(1),
         .columns = weight.size(0),
         .a = Elements<float>(a),
         .weight = data,
         .out = MutableElements<float>(out)});
  };
  w.scalar_type() == at::kFloat ? multiply(Elements<float>(w)) : multiply(Elements<Bf16>(w));
  return out.to(dtype);
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
