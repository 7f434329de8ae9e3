// Output buffers for the gradients of weights in a backward: the sinks of their owner
// (ops/torch/gradient_sink.h), else new memory that is returned to autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "ops/torch/gradient_sink.h"

namespace halflife::ops {

class WeightSums {
 public:
  // `weights` are [rows_i, D], at least one. Each is a leaf with a sink, or any other tensor.
  explicit WeightSums(std::vector<at::Tensor> weights);
  // For rows whose buffer the caller provides. Finish() then has nothing to do.
  WeightSums(at::Tensor target, bool added) : matrix_(std::move(target)), added_(added) {}

  // [sum of rows, D]: the gradients, stacked by rows. fp64 for fp64 weights, else fp32. `added`:
  // add to its contents.
  at::Tensor& matrix() { return matrix_; }
  bool added() const { return added_; }
  // Call once the matrix is written. Returns one gradient per weight in its dtype, undefined if a
  // sink has it.
  std::vector<at::Tensor> Finish();

 private:
  bool UsesTargets();

  std::vector<at::Tensor> weights_;
  std::vector<GradientSink*> sinks_;           // one per weight, or empty
  std::vector<GradientSink::Target> targets_;  // one per weight, or empty
  at::Tensor matrix_;
  bool in_targets_ = false, added_ = false;
};

}  // namespace halflife::ops
