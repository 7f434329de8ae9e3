// Operations that produce the logarithms of decays: from gates per token (DecayGate, ForgetGate),
// and from parameters only (NegativeExp, HeadOffsetDecay). delta_gates.h has those of delta rule
// layers, and state_space_gates.h those of state-space layers.
//
// DecayGate produces per-channel decays (Yang et al., 2024): log_decay = scale ln sigmoid(x +
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

// The forget gate of HGRN2 (Qin et al., 2024), which is also its key:
//
//   alpha = bound + (1 - bound) sigmoid(x),   log_decay = ln alpha,   k = 1 - alpha
//
// Both outputs are accurate for any x: k is computed as (1 - bound) sigmoid(-x), and log_decay from
// the smaller one of alpha and k. Computed with LibTorch operations in fp32 (fp64 for fp64 inputs).
// Differentiable.
struct ForgetGateInputs {
  at::Tensor x;           // [..., C] fp32, bf16 or fp64
  at::Tensor bound = {};  // [C] fp32 (fp64 for fp64 inputs), in [0, 1); undefined: 0
};
struct ForgetGateOutput {
  at::Tensor k;          // [..., C], dtype of x
  at::Tensor log_decay;  // [..., C] fp32 or fp64, finite and <= 0 for finite x
};
ForgetGateOutput ForgetGate(const ForgetGateInputs& inputs);

// Logarithms of decays that depend only on parameters and are the same for all tokens. fp32 (fp64
// for fp64 parameters). Differentiable; the gradient of a parameter that has a sink
// (ops/torch/gradient_sink.h) goes to the sink.
//
//   const at::Tensor a = NegativeExp(*a_log);  // Mamba's, [I, N]; RWKV-4's, [D]
//   const at::Tensor log_decay = HeadOffsetDecay(*ps, num_heads, {.scale = 0.02});  // D2D
//
// Returns -e^p.
at::Tensor NegativeExp(const at::Tensor& p);

struct HeadOffsetDecayConfig {
  double scale = 1;
  // Upper bound of log_decay; no gradient above it.
  double most = std::numeric_limits<double>::infinity();
};
// Returns -2^(-H/h) - scale p for heads h = 1 .. H, bounded from above. p is a parameter of H K
// elements, head by head; the result is [H, K].
at::Tensor HeadOffsetDecay(const at::Tensor& p, int64_t num_heads,
                           const HeadOffsetDecayConfig& config);

}  // namespace halflife::ops
