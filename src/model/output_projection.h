// The last matrix of a branch, with which a mixer or a channel mixer writes to the residual stream:
// y W^T + b. With a sub_ln block, a norm is applied to y first.
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

 private:
  std::unique_ptr<const Norm> inner_norm_;
  Parameter weight_, bias_;
};

}  // namespace halflife::model
