// Connects an optimizer to the arena: describes the ranges that this rank updates, and passes the
// pointers of the arrays to each update. If the optimizer updates whole matrices, it also brings
// them together, because with ZeRO each rank holds only slices (MatrixExchange).
//
//   ArenaOptimizer optimizer(arena, config.optimizer);
//   optimizer.Update(lr, clip, ++num_updates);
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "dist/communicator.h"
#include "optim/optimizer.h"
#include "train/config/run_config.h"
#include "train/step/matrix_exchange.h"
#include "train/step/parameter_arena.h"
#include "train/step/parameter_groups.h"

namespace halflife::train {

// Returns the factor d of the average of the weights in update t = `num_updates` >= 1: average = d
// average + (1 - d) w. d is at most (1 + t) / (10 + t), so that the initial weights do not dominate
// short runs.
double AverageDecay(double ema_decay, uint64_t num_updates);

class ArenaOptimizer {
 public:
  // Borrows the arena, which has the optimizer's state arrays, and the ranks, whose order is that
  // of the arena's slices. They are needed only if the arena is sliced.
  ArenaOptimizer(ParameterArena& arena, const OptimizerConfig& config,
                 dist::Communicator* ranks = nullptr);

  // One update of what this rank updates, except for frozen parameters, and of the average of the
  // weights, with gradient = arena.grads() * grad_factor.
  // `num_updates` counts updates including this one (>= 1). Collective if the arena is sliced and
  // the optimizer updates whole matrices.
  void Update(double lr, double grad_factor, uint64_t num_updates);

  // Returns the seconds that the host has waited for matrices since the last call of this function.
  double TakeWaitSeconds() { return exchange_ ? exchange_->TakeWaitSeconds() : 0; }

 private:
  optim::Range RangeOf(const dist::Fragment& part) const;
  void UpdateMatrices(const optim::UpdateArgs& args);
  void UpdateAverage(uint64_t num_updates);

  ParameterArena& arena_;
  const std::vector<ParameterRule> rules_;  // by parameter
  const double ema_decay_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<at::Tensor> states_;          // the arena's arrays, in the order of state_names()
  at::Tensor table_;                        // what the optimizer prepared, on the arena's device
  std::optional<MatrixExchange> exchange_;  // if the optimizer has a rule for matrices
};

// Makes the exchange of an arena's matrices for an optimizer's rule. Frozen parameters have no
// matrices. `ranks`: as in ArenaOptimizer. `kind`: the device of the run, which a plan's arena does
// not know.
MatrixExchange MakeMatrixExchange(ParameterArena& arena, const std::vector<ParameterRule>& rules,
                                  const optim::MatrixRule& rule, dist::Communicator* ranks,
                                  Device::Kind kind);

}  // namespace halflife::train
