// The delta rule in LibTorch's operations, differentiable, for comparison with the kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace halflife::bench {

struct DeltaOperands {
  at::Tensor q, k, v;    // [B, T, H, K] and [B, T, H, V]
  at::Tensor log_decay;  // [B, T, H], [B, T, H, K] or undefined
  at::Tensor beta;       // [B, T, H]

  std::vector<at::Tensor> leaves() const;
};

// Computes the outputs in chunks of `size` tokens, which divides T: one batched triangular solve
// for all chunks, then a loop over the chunks' states. With decays per channel, operands are
// divided by running decays, which fp32 can represent for the benchmark's decays but not for all.
at::Tensor EagerDeltaRule(const DeltaOperands& in, double scale, int64_t size);

}  // namespace halflife::bench
