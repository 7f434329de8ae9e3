// The gate that decays per channel come from (Yang et al., 2024): log_decay = scale ln sigmoid(x +
// bias), perhaps bounded from below. fp32 whatever x is stored as (fp64 beside fp64).
// Differentiable.
//
//   const at::Tensor log_decay = DecayGate(logits, *bias, {.scale = 1.0 / 16});
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

namespace halflife::ops {

struct DecayGateConfig {
  double scale = 1;
  double floor = -std::numeric_limits<double>::infinity();  // of log_decay; no gradient at it
};

// x [..., C] fp32, bf16 or fp64, bias [C] fp32 (fp64 beside fp64) -> [..., C] fp32 or fp64.
at::Tensor DecayGate(const at::Tensor& x, const at::Tensor& bias, const DecayGateConfig& config);

}  // namespace halflife::ops
