// Layer norms (Ba et al., 2016) of one or several inputs of the same shape in one pass, gamma and
// beta applied: y = (x - mean) / sqrt(var + eps) gamma + beta, over the last dimension, the
// variance divided by all of it. Arithmetic in fp32 (fp64 beside fp64), rounded once.
//
//   const auto y = LayerNorms({{.x = q, .gamma = *q_gamma, .beta = *q_beta},
//                              {.x = k, .gamma = *k_gamma, .beta = *k_beta}}, 1e-5);
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/torch/column_places.h"

namespace halflife::ops {

struct LayerNormInput {
  at::Tensor x;                 // [..., n] fp32, bf16 or fp64; columns of a matrix are read there
  at::Tensor gamma;             // [n] in the compute type
  at::Tensor beta;              // likewise; undefined: none
  ColumnPlace x_gradient = {};  // where that of x goes, whose rows are columns of a matrix
};

// One a part, like x and contiguous. Differentiable; gamma and beta whose owner has a sink for
// their gradients (ops/torch/gradient_sink.h) get them there. No parameter is in two parts.
std::vector<at::Tensor> LayerNorms(const std::vector<LayerNormInput>& parts, double eps);

}  // namespace halflife::ops
