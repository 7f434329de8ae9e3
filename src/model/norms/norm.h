// A norm over the channels of each token. To add a norm, add a class and a line of NormVariants()
// to norm.cc.
//
//   const auto norm = MakeNorm(config.norm, {.prefix = "layers.0.attn_norm.", ...}, model_dim);
//   h = (*norm)(x);
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "model/part_context.h"
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

}  // namespace halflife::model
