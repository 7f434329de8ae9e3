// A norm over the channels of each token. To add a norm, add a class and a line of NormVariants()
// to norm.cc.
//
//   const auto norm = MakeNorm(config.norm, {.prefix = "layers.0.attn_norm.", ...}, model_dim);
//   h = (*norm)(x);
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/part_context.h"
#include "ops/linear/linear.h"
#include "ops/linear/row_products.h"

namespace halflife::model {

class Norm {
 public:
  virtual ~Norm() = default;
  // x [..., dim] -> the same shape and dtype.
  virtual at::Tensor operator()(const at::Tensor& x) const = 0;
  // Sets x += branch and returns the norm of the sum. Takes one pass over memory if a kernel
  // supports it.
  virtual at::Tensor AddAndNorm(at::Tensor& x, const at::Tensor& branch) const;
  // Returns the norm in the form that products can compute it in, or nullopt.
  virtual std::optional<ops::RowNorm> ToRowNorm() const { return std::nullopt; }
};

struct NormContext {
  PartContext part;  // Parameters are named prefix + "weight" and prefix + "bias".
  int64_t dim = 0;
};

extern const PartKind kNorms;
using NormConfig = ConfigOf<kNorms>;

// `config` is a NormConfig. Throws the errors of MakePart.
std::unique_ptr<Norm> MakeNorm(const PartConfig& config, const PartContext& context, int64_t dim);

// The weight of an RMS norm, plain or zero-centered. A zero-centered weight w multiplies by 1 + w
// (Qwen3-Next, Gemma). It starts at 0, and the optimizer and checkpoints hold w itself, so weight
// decay, if there is any, pulls the factor towards 1.
class NormWeight {
 public:
  NormWeight() = default;
  // Declares the weight [dim], named prefix + name: in fp32, without weight decay.
  NormWeight(const PartContext& context, const std::string& name, int64_t dim, bool zero_centered)
      : zero_centered_(zero_centered),
        weight_(DeclareFp32(context, name, {dim}, zero_centered ? Init::Zeros() : Init::Ones())) {}

  bool declared() const { return weight_.declared(); }
  // Returns the factor of the normed channels, [dim].
  at::Tensor Factor() const { return zero_centered_ ? *weight_ + 1 : *weight_; }

 private:
  bool zero_centered_ = false;
  Parameter weight_;
};

// The input of a branch of a block: the norm of the residual stream. The norm is computed when its
// first reader asks for it. In decoding on a GPU, the products that read it compute it themselves,
// in the same launch (ops/linear/row_products.h). The results have the same bits.
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
