// Elementwise activations by the names that `transformers` gives them: of q and k in linear mixers
// (their feature map), of the channel mixers' inner channels.
//
//   const Activation activation = Activation::Named("gelu_tanh");
//   q = activation(q);
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace halflife::model {

class Activation {
 public:
  Activation() = default;  // the identity, "none"
  // Error kInternal for a name that is not in Names().
  static Activation Named(const std::string& name);
  static std::vector<std::string> Names();

  // Any shape; the same shape and dtype. Differentiable.
  at::Tensor operator()(const at::Tensor& x) const { return apply_ == nullptr ? x : apply_(x); }

 private:
  at::Tensor (*apply_)(const at::Tensor&) = nullptr;
};

}  // namespace halflife::model
