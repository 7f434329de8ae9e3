// The step sizes and decays of a state-space layer with one decay per head (Dao and Gu, 2024):
//
//   step = min(max(softplus(x + bias), least), most),   log_decay = -e^{a_log} step
//
// Computed in fp32 for every dtype of x (fp64 for fp64 inputs). Differentiable; x and bias have no
// gradient where a limit applies. The gradient of a bias or a_log that has a sink
// (ops/torch/gradient_sink.h) goes to the sink.
//
//   const auto [step, log_decay] = StepGate({.x = dt, .bias = *dt_bias, .a_log = *a_log}, {});
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

#include "ops/torch/column_slices.h"

namespace halflife::ops {

struct StepGateInputs {
  at::Tensor x;      // [..., H] fp32, bf16 or fp64; columns of a matrix are read without a copy
  at::Tensor bias;   // [H] fp32 (fp64 for fp64 inputs)
  at::Tensor a_log;  // [H], like bias
  ColumnSlice x_gradient = {};  // buffer of x's gradient
};
struct StepGateConfig {
  double least = 0, most = std::numeric_limits<double>::infinity();
};
struct StepGateOutput {
  at::Tensor step, log_decay;  // [..., H] fp32 or fp64
};
StepGateOutput StepGate(const StepGateInputs& inputs, const StepGateConfig& config);

}  // namespace halflife::ops
