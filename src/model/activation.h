// Elementwise activations, with the names that `transformers` gives them. Linear mixers apply them
// to q and k (the feature map); channel mixers apply them to their inner channels.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace halflife::model {

class Activation {
 public:
  Activation() = default;  // The identity, named "none".
  // Throws kInternal if `name` is not in Names().
  static Activation Named(const std::string& name);
  static std::vector<std::string> Names();

  // Returns the number of elements that backward keeps per element, without the output itself. It
  // is 0 if the output is all that backward reads.
  int num_kept() const { return num_kept_; }

  // Accepts any shape and returns the same shape and dtype. Differentiable.
  at::Tensor operator()(const at::Tensor& x) const { return apply_ == nullptr ? x : apply_(x); }

 private:
  at::Tensor (*apply_)(const at::Tensor&) = nullptr;
  int num_kept_ = 0;
};

}  // namespace halflife::model
