// An elementwise activation of q and k, by the names that `transformers` gives them: an option of linear mixers.
//
//   sizes.feature_map = FeatureMap::Read(options);   // option feature_map, "none" by default
//   q = sizes.feature_map(q);
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/mixer.h"

namespace halflife::model {

class FeatureMap {
 public:
  FeatureMap() = default;  // the identity
  static FeatureMap Read(MixerOptions& options);
  static std::vector<std::string> Names();

  // Any shape; the same shape and dtype. Differentiable.
  at::Tensor operator()(const at::Tensor& x) const { return apply_ == nullptr ? x : apply_(x); }

 private:
  at::Tensor (*apply_)(const at::Tensor&) = nullptr;
};

}  // namespace halflife::model
