// Connects an optimizer to the arena: describes the ranges that this rank updates, and passes the
// pointers of the arrays to each update.
//
//   ArenaOptimizer optimizer(arena, config.optimizer);
//   optimizer.Update(lr, clip, ++num_updates);
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

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
  std::vector<at::Tensor> states_;  // the arena's arrays, in the order of state_names()
  at::Tensor table_;                // what the optimizer prepared, on the arena's device
};

}  // namespace halflife::train
