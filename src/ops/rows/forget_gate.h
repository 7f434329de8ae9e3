// The forget gate of HGRN2 (Qin et al., 2024), which is also its key:
//
//   alpha = bound + (1 - bound) sigmoid(x),   log_decay = ln alpha,   k = 1 - alpha
//
// Both outputs are accurate for any x: k is computed as (1 - bound) sigmoid(-x), and log_decay from
// the smaller one of alpha and k. Computed with LibTorch operations in fp32 (fp64 for fp64 inputs).
// Differentiable.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::ops {

struct ForgetGateInputs {
  at::Tensor x;           // [..., C] fp32, bf16 or fp64
  at::Tensor bound = {};  // [C] fp32 (fp64 for fp64 inputs), in [0, 1); undefined: 0
};
struct ForgetGateOutput {
  at::Tensor k;          // [..., C], dtype of x
  at::Tensor log_decay;  // [..., C] fp32 or fp64, finite and <= 0 for finite x
};
ForgetGateOutput ForgetGate(const ForgetGateInputs& inputs);

}  // namespace halflife::ops
