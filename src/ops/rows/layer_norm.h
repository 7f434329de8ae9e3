// Layer norms (Ba et al., 2016) of one or several inputs of the same shape in one pass: y = (x -
// mean) / sqrt(var + eps) gamma + beta over the last dimension, with the biased variance.
// Arithmetic is fp32 (fp64 for fp64 inputs), rounded once.
//
//   const auto y = LayerNorms({{.x = q, .gamma = *q_gamma, .beta = *q_beta},
//                              {.x = k, .gamma = *k_gamma, .beta = *k_beta}}, 1e-5);
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/torch/column_slices.h"

namespace halflife::ops {

struct LayerNormInput {
  at::Tensor x;      // [..., n] fp32, bf16 or fp64; columns of a matrix are read without a copy
  at::Tensor gamma;  // [n] in the compute type
  at::Tensor beta;   // [n] in the compute type; undefined: none
  ColumnSlice x_gradient = {};  // buffer of x's gradient, for an x that is columns of a matrix
};

// Returns one output per part, like x and contiguous. Differentiable; the gradients of gamma and
// beta that have a sink (ops/torch/gradient_sink.h) go to the sink. A parameter must not be used by
// two parts.
std::vector<at::Tensor> LayerNorms(const std::vector<LayerNormInput>& parts, double eps);

// Standardizes rows: y = (x - mean) / (s + eps), where s is the standard deviation with Bessel's
// correction and eps is added outside the square root (the RealNorm of LEAP). There are no
// affine parameters, so this is not a layer norm. A constant row gives zeros; with eps > 0 its
// gradient is that of (x - mean) / eps.
//
//   const at::Tensor y = RealNorm(heads, 1e-5);   // heads [B, T, H, n]
//
// x [..., n], n >= 2, fp32, bf16 or fp64 -> the same shape, fp32 (fp64 for fp64 inputs).
// Differentiable.
at::Tensor RealNorm(const at::Tensor& x, double eps);

}  // namespace halflife::ops
