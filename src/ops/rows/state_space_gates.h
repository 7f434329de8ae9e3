// The gates before and behind the scan of a state-space layer: StepGate and SkipGate.
//
// StepGate computes the step sizes and decays of a layer with one decay per head (Dao and Gu,
// 2024):
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

// The skip connection and the gate behind a state-space scan with heads (Dao and Gu, 2024), in one
// pass: out = (y + skip_h x) silu(gate), with one factor per head h. All tensors except `skip` have
// one dtype, fp32, bf16 or fp64. Arithmetic is fp32 (fp64 for fp64 inputs); out is rounded once.
// Differentiable; the gradient of a skip that has a sink (ops/torch/gradient_sink.h) goes to the
// sink.
//
//   const at::Tensor out = SkipGate({.y = y, .x = v, .skip = *d, .gate = z});
struct SkipGateInputs {
  at::Tensor y;                    // [..., H P]
  at::Tensor x;                    // like y; columns of a matrix are read without a copy
  at::Tensor skip;                 // [H] fp32 (fp64 for fp64 inputs)
  at::Tensor gate = {};            // like x; undefined: none
  ColumnSlice gate_gradient = {};  // buffer of the gate's gradient
};
at::Tensor SkipGate(const SkipGateInputs& inputs);  // [..., H P]

}  // namespace halflife::ops
