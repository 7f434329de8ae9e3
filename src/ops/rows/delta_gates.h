// The gates of a delta rule layer (Yang et al., 2025; Kimi Team, 2025): the decay of the state and
// the write strength beta of each token, from the products of x with their matrices. One pass
// computes both.
//
//   log_decay = -e^{a_log} softplus(x + bias)
//   log_decay = bound sigmoid(e^{a_log} (x + bias))     if bound < 0
//   beta = beta_scale sigmoid(b)
//
// Computed in fp32 for every dtype of x and b (fp64 for fp64 inputs). Differentiable. The gradient
// of a bias or a_log that has a sink (ops/torch/gradient_sink.h) goes to the sink.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/torch/column_slices.h"

namespace halflife::ops {

// D decays per token: one per head (D = H), or one per channel of each head. x, bias and a_log are
// undefined without a decay, and b is undefined without beta. One of x and b is defined.
struct DeltaGatesInputs {
  at::Tensor x;      // [..., D] fp32, bf16 or fp64; columns of a matrix are read without a copy
  at::Tensor bias;   // [D] fp32 (fp64 for fp64 inputs)
  at::Tensor a_log;  // [H], like bias; H divides D
  at::Tensor b;      // [..., number of betas], in the dtype of x
  ColumnSlice x_gradient = {}, b_gradient = {};  // buffers of the gradients of x and b
};
struct DeltaGatesConfig {
  double bound = 0;  // at most 0; 0 selects the first formula
  double beta_scale = 1;
};
struct DeltaGatesOutput {
  at::Tensor log_decay, beta;  // in the shape of x and b, fp32 or fp64; undefined like them
};
DeltaGatesOutput DeltaGates(const DeltaGatesInputs& inputs, const DeltaGatesConfig& config);

}  // namespace halflife::ops
