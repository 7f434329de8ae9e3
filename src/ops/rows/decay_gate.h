// The gate that produces per-channel decays (Yang et al., 2024): log_decay = scale ln sigmoid(x +
// bias), optionally bounded from below. Computed in fp32 for every dtype of x (fp64 for fp64
// inputs). Differentiable.
//
//   const at::Tensor log_decay = DecayGate(logits, *bias, {.scale = 1.0 / 16});
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

namespace halflife::ops {

struct DecayGateConfig {
  double scale = 1;
  // Lower bound of log_decay; no gradient where it applies.
  double floor = -std::numeric_limits<double>::infinity();
};

// x [..., C] fp32, bf16 or fp64, bias [C] fp32 (fp64 for fp64 inputs) -> [..., C] fp32 or fp64.
at::Tensor DecayGate(const at::Tensor& x, const at::Tensor& bias, const DecayGateConfig& config);

}  // namespace halflife::ops
