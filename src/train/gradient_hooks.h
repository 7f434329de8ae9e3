// Moves each parameter's gradient into the fp32 arena the moment autograd has accumulated it, and
// drops `.grad`, so that no second copy of the gradients lives and buckets can be reduced while
// backward still runs.
//
//   GradientHooks hooks(parameters, arena);
//   hooks.BeginMicroBatch(/*first=*/true, &reducer);   // the reducer for the last micro-batch only
//   loss.backward();
//   hooks.EndMicroBatch();                             // Error naming parameters that got no
//   gradient
#pragma once

#include <vector>

#include "dist/gradient_reducer.h"
#include "train/parameter_arena.h"

namespace halflife::train {

class GradientHooks {
 public:
  GradientHooks(model::ParameterSet& parameters, ParameterArena& arena);
  ~GradientHooks();  // takes the hooks off
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // `first`: gradients overwrite the slots (no zeroing pass); else they add.
  void BeginMicroBatch(bool first, dist::GradientReducer* reducer);
  void EndMicroBatch();

 private:
  class Hook;
  void Adopt(int param, at::Tensor& grad);

  model::ParameterSet& parameters_;
  ParameterArena& arena_;
  std::vector<at::Tensor> slots_;  // by parameter: its view of arena.grads()
  std::vector<int> uses_;          // accumulations seen in this micro-batch
  bool first_ = true;
  dist::GradientReducer* reducer_ = nullptr;
};

}  // namespace halflife::train
