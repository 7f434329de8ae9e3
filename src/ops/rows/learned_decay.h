// Logarithms of decays that follow from parameters alone, the same for all tokens. fp32 (fp64
// beside fp64). Differentiable; a parameter whose owner has a sink for its gradient
// (ops/torch/gradient_sink.h) gets it there.
//
//   const at::Tensor a = NegativeExp(*a_log);  // Mamba's, [I, N]; RWKV-4's, [D]
//   const at::Tensor log_decay = DecayOffHeads(*ps, num_heads, {.scale = 0.02});  // D2D
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>

namespace halflife::ops {

// -e^p
at::Tensor NegativeExp(const at::Tensor& p);

struct DecayOffHeadsConfig {
  double scale = 1;
  double most = std::numeric_limits<double>::infinity();  // of log_decay; no gradient beyond
};
// -2^(-H/h) - scale p of heads h = 1 .. H, bounded from above. p: a parameter of H K elements, head
// by head -> [H, K].
at::Tensor DecayOffHeads(const at::Tensor& p, int64_t num_heads, const DecayOffHeadsConfig& config);

}  // namespace halflife::ops
