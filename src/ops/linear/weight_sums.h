// Where the gradients of weights go while a backward computes them: to the sums that their owner
// keeps (ops/torch/gradient_sink.h), else to memory of their own that autograd takes.
//
//   WeightSums sums(weights);                      // side by side: one matrix
//   sums.added() ? sums.matrix().addmm_(dy.t(), x) : at::mm_out(sums.matrix(), dy.t(), x);
//   const std::vector<at::Tensor> to_autograd = sums.Finish();
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "ops/torch/gradient_sink.h"

namespace halflife::ops {

class WeightSums {
 public:
  // weights [rows_i, D], at least one, each a leaf with a sink or anything else.
  explicit WeightSums(std::vector<at::Tensor> weights);
  // Of rows whose place another has found: nothing is left to finish.
  WeightSums(at::Tensor place, bool added) : matrix_(std::move(place)), added_(added) {}

  // [sum of rows, D]: the gradients one below the other; fp32, fp64 for such weights. `added`: to
  // what it holds.
  at::Tensor& matrix() { return matrix_; }
  bool added() const { return added_; }
  // Once the matrix is written: one gradient a weight in its dtype, undefined where a sink has it.
  std::vector<at::Tensor> Finish();

 private:
  bool UsesPlaces();

  std::vector<at::Tensor> weights_;
  std::vector<GradientSink*> sinks_;         // one a weight, or none
  std::vector<GradientSink::Place> places_;  // likewise
  at::Tensor matrix_;
  bool in_places_ = false, added_ = false;
};

}  // namespace halflife::ops
