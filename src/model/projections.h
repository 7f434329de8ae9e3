// The steps that mixers and channel mixers share: splitting channels into heads, and the output
// projection.
//
// An OutputProjection is the last matrix of a branch, with which a mixer or a channel mixer writes
// to the residual stream: y W^T + b. With a sub_ln block, a norm is applied to y first.
//
//   const OutputProjection out(context, /*width=*/512, /*bias=*/false);
//   const at::Tensor branch = out(y);  // [..., 512] -> [..., D]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "model/norms/norm.h"

namespace halflife::model {

// Splits the channels of a projection into heads, and repeats heads for grouped queries.
//
// [..., H d] -> [..., H, d].
inline at::Tensor SplitHeads(const at::Tensor& x, int64_t head_dim) {
  return x.unflatten(-1, {-1, head_dim});
}
// [B, T, Hk, d] -> [B, T, H, d] for H query heads: query head h reads head h / (H / Hk).
inline at::Tensor RepeatHeads(const at::Tensor& x, int64_t num_heads) {
  const int64_t group = num_heads / x.size(2);
  if (group == 1) return x;
  return x.unsqueeze(3).expand({x.size(0), x.size(1), x.size(2), group, x.size(3)}).flatten(2, 3);
}

// The name of the matrix and its initial values.
struct OutputForm {
  std::string name = "o_proj";
  // The complete initialiser, including the block's output_init_scale. Absent: MatrixInit scaled by
  // output_init_scale.
  std::optional<Init> init = {};
};

class OutputProjection {
 public:
  OutputProjection() = default;
  // Declares inner_norm.* (if the block asks for an inner norm), name.weight and name.bias (if
  // `bias`).
  OutputProjection(const PartContext& context, int64_t width, bool bias,
                   const OutputForm& form = {});
  at::Tensor operator()(const at::Tensor& y) const;  // [..., width] -> [..., D]
  // The same for the norm of an input [..., width] in one launch; nullopt if no kernel supports it.
  std::optional<at::Tensor> OfNorm(const ops::RowInput& input) const;

 private:
  std::unique_ptr<const Norm> inner_norm_;
  Parameter weight_, bias_;
};

}  // namespace halflife::model
