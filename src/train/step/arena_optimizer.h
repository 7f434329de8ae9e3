// An optimizer with the arena that it updates: it tells the optimizer which ranges this rank
// updates and where they are, and passes it the arrays' pointers.
//
//   ArenaOptimizer optimizer(arena, config.optimizer);
//   optimizer.Update(lr, clip, ++num_updates);
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "optim/optimizer.h"
#include "train/config/run_config.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

class ArenaOptimizer {
 public:
  // Borrows the arena, which has the optimizer's state arrays. Error kUsage if the optimizer needs
  // whole matrices and this rank updates only a part of one.
  ArenaOptimizer(ParameterArena& arena, const OptimizerConfig& config);

  // One update of what this rank updates, with gradient = arena.grads() * grad_factor.
  // `num_updates` counts updates including this one (>= 1).
  void Update(double lr, double grad_factor, uint64_t num_updates);

 private:
  ParameterArena& arena_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  at::Tensor table_;  // what the optimizer prepared, on the arena's device
};

}  // namespace halflife::train
