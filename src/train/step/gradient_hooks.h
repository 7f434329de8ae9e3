// Has each parameter's gradient added up in the fp32 arena the moment backward knows it
// (ops/torch/gradient_sink.h), so that there is no second copy of the gradients and buckets can
// be reduced while backward still runs.
//
// Micro-batches are summed pairwise on the CPU (core/pairwise_sum.h), as ranks are, so that powers
// of two of either change no bit; this takes one more arena for each doubling of their number. On
// CUDA they are summed one after the other, as NCCL's order is not ours and nothing would be
// gained, and so are those that a graph replays. With GradientShares each is summed over ranks
// first.
//
//   GradientHooks hooks(parameters, arena, {});
//   for (int64_t i = 0; i < n; ++i) {
//     hooks.BeginMicroBatch(i, n, i == n - 1 ? &reducer : nullptr);
//     loss.backward();
//     hooks.EndMicroBatch();   // Error naming parameters that got no gradient
//   }
#pragma once

#include <vector>

#include "dist/gradient_reducer.h"
#include "ops/torch/gradient_sink.h"
#include "train/step/gradient_shares.h"
#include "train/step/parameter_arena.h"

namespace halflife::train {

class GradientHooks {
 public:
  struct Options {
    GradientShares* shares = nullptr;  // borrowed, where the arena's gradients are slices
    bool in_order = false;             // one after the other on the CPU, too
    // Layers go back one by one, and each reader of a parameter adds its own gradient; else
    // autograd adds them up first.
    bool recomputes = false;
  };
  GradientHooks(model::ParameterSet& parameters, ParameterArena& arena, const Options& options);
  ~GradientHooks();  // takes the sinks off
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // Begins micro-batch `index` of the `count` of a step; they come in order. The first overwrites
  // the slots, so that no pass has to zero them. Pass `reducer` only with the last one: it is
  // notified of each parameter as soon as its sum is complete.
  void BeginMicroBatch(int64_t index, int64_t count, dist::GradientReducer* reducer);
  // One that adds to what the arena holds, whichever of the step's it is: the same each time, as a
  // recording wants it. Where micro-batches are summed in order, without shares.
  void BeginAdded();
  void EndMicroBatch();

 private:
  class Sink;
  ops::GradientSink::Place Next(int param);
  void Written(int param);
  int UsesOf(int param) const;  // accumulations of one backward

  model::ParameterSet& parameters_;
  ParameterArena& arena_;
  const Options options_;
  GradientShares* const shares_ = options_.shares;
  std::vector<at::Tensor> slots_;  // by parameter: its view of arena.grads(); empty with shares
  // By parameter, where its parts of a micro-batch are added up before they join those of earlier
  // ones, as autograd does it: the bits are those of a run that recomputes nothing.
  std::vector<at::Tensor> own_sums_;
  std::vector<int> uses_;  // accumulations seen in this micro-batch
  bool pairwise_;
  // [level][parameter]: finished subtrees of earlier micro-batches.
  std::vector<std::vector<at::Tensor>> levels_;
  int64_t index_ = 0, count_ = 1;
  dist::GradientReducer* reducer_ = nullptr;
};

}  // namespace halflife::train
