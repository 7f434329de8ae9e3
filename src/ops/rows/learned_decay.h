// Logarithms of decays that depend only on parameters and are the same for all tokens. fp32 (fp64
// for fp64 parameters). Differentiable; the gradient of a parameter that has a sink
// (ops/torch/gradient_sink.h) goes to the sink.
//
//   const at::Tensor a = NegativeExp(*a_log);  // Mamba's, [I, N]; RWKV-4's, [D]
//   const at::Tensor log_decay = HeadOffsetDecay(*ps, num_heads, {.scale = 0.02});  // D2D
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

namespace halflife::ops {

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
