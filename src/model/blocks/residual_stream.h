// The residual stream: the sum that runs through all blocks. A new branch is kept separate until
// the next norm reads the sum. The norm can then add and normalise in one pass over memory.
//
//   stream.Add(mixer(stream.Normed(*norm)));
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "model/norms/norm.h"

namespace halflife::model {

class ResidualStream {
 public:
  explicit ResidualStream(at::Tensor x, at::Tensor branch = {})
      : x_(std::move(x)), branch_(std::move(branch)) {}

  // The current sum and pending branch, in the form that the constructor accepts.
  const at::Tensor& x() const { return x_; }
  const at::Tensor& branch() const { return branch_; }

  void Add(at::Tensor branch) {
    x_ = Sum();
    branch_ = std::move(branch);
  }
  // Returns the norm of the sum.
  at::Tensor Normed(const Norm& norm) {
    if (!branch_.defined()) return norm(x_);
    const at::Tensor branch = std::move(branch_);
    branch_.reset();
    return norm.AddAndNorm(x_, branch);
  }
  at::Tensor Sum() {
    if (branch_.defined()) x_ = x_ + branch_;
    branch_.reset();
    return x_;
  }
  void Replace(at::Tensor x) {
    x_ = std::move(x);
    branch_.reset();
  }

 private:
  at::Tensor x_, branch_;  // [..., D]; branch_ is undefined if no branch is pending.
};

}  // namespace halflife::model
