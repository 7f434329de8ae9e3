// AdamW over the arena, decay where a parameter asks for it, or everywhere; the arithmetic is
// kernels/adamw.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/adamw/adamw_args.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

using kernels::AdamWConfig;

class AdamW {
 public:
  AdamW(ParameterArena& arena, const AdamWConfig& config, bool decay_all = false);

  // One update of what this rank updates, with gradient = arena.grads() * grad_factor;
  // `num_updates` counts updates including this one (>= 1).
  void Update(double lr, double grad_factor, uint64_t num_updates);

 private:
  ParameterArena& arena_;
  AdamWConfig config_;
  at::Tensor segments_;  // kernels::AdamWSegment as bytes, one per fragment, on the arena's device
  int num_segments_ = 0;
  int64_t max_segment_ = 0;
};

}  // namespace halflife::train
