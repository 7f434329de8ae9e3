// The last matrix of a branch, by which a mixer or a channel mixer writes to the residual stream:
// y W^T + b, after the sub-LN norm where the block wants one.
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

// What a branch calls the matrix, and how it starts.
struct OutputForm {
  std::string name = "o_proj";
  // The whole of it, the block's output_init_scale included; absent: MatrixInit, scaled by that.
  std::optional<Init> init = {};
};

class OutputProjection {
 public:
  OutputProjection() = default;
  // Declares inner_norm.*, where the block wants it, name.weight and name.bias.
  OutputProjection(const PartContext& context, int64_t width, bool bias,
                   const OutputForm& form = {});
  at::Tensor operator()(const at::Tensor& y) const;  // [..., width] -> [..., D]

 private:
  std::unique_ptr<const Norm> inner_norm_;
  Parameter weight_, bias_;
};

}  // namespace halflife::model
