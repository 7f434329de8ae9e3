// AdamW (Loshchilov & Hutter, "Decoupled weight decay regularization") over the arena, decay on
// matrices only:
//   m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  w -= lr (m / (1 - b1^t) / (sqrt(v / (1 -
//   b2^t)) + eps) + wd w)
// The arithmetic is LibTorch's fused kernel, on the CPU and on CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "train/parameter_arena.h"

namespace halflife::train {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

class AdamW {
 public:
  AdamW(ParameterArena& arena, const AdamWConfig& config);

  // One update with gradient = arena.grads() * grad_factor; `num_updates` counts updates including
  // this one (>= 1).
  void Update(double lr, double grad_factor, uint64_t num_updates);

 private:
  struct Group {
    double weight_decay = 0;
    std::vector<at::Tensor> main, grads, m, v, steps;
  };
  ParameterArena& arena_;
  AdamWConfig config_;
  at::Tensor step_;          // scalar fp32: shared by all parameters
  at::Tensor grad_divisor_;  // scalar fp32
  Group groups_[2];
};

}  // namespace halflife::train
