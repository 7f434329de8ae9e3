// The input of a branch of a block: the norm of the residual stream. The norm is computed when its
// first reader asks for it. In decoding on a GPU, the products that read it compute it themselves,
// in the same launch (ops/linear/row_products.h). The results have the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "model/norms/norm.h"
#include "ops/linear/linear.h"
#include "ops/linear/row_products.h"

namespace halflife::model {

class NormedInput {
 public:
  // An input that was computed before.
  NormedInput(at::Tensor x) : normed_(std::move(x)) {}  // NOLINT(google-explicit-constructor)
  // The norm of x + branch; `branch` may be undefined. Borrows the norm and x. Once the norm is
  // computed, x holds the sum.
  NormedInput(const Norm& norm, at::Tensor& x, at::Tensor branch)
      : norm_(&norm), x_(&x), branch_(std::move(branch)) {}

  // Returns the input [..., D].
  const at::Tensor& Tensor() const;
  operator const at::Tensor&() const { return Tensor(); }  // NOLINT(google-explicit-constructor)
  // SharedInputParts() of the input. In decoding on a GPU, and if the input was not read before,
  // the norm is part of the products' launch.
  std::vector<ops::LinearPart> Products(const std::vector<at::Tensor>& weights) const;
  // Returns silu(x gate^T) * (x up^T), or nullopt if no kernel computes it in one launch.
  std::optional<at::Tensor> SwiGluProducts(const at::Tensor& gate, const at::Tensor& up) const;

 private:
  bool pending() const { return !normed_.defined(); }
  // Returns the products of all matrices, or SwiGLU of the two, in one launch; nullopt if no kernel
  // supports them.
  std::optional<ops::RowOutputs> Launch(const std::vector<at::Tensor>& matrices, bool swiglu) const;

  const Norm* norm_ = nullptr;
  at::Tensor* x_ = nullptr;
  mutable at::Tensor branch_, normed_;
};

}  // namespace halflife::model
