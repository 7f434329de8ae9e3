// What linear attention makes of the q and k of a head, so that products of the two stand for
// similarities: the maps of fla's LinearAttention and of D2D.
//
//   const auto map = MakeFeatureMap("elu", context, head_dim);
//   const Features k = (*map)(SplitHeads(y, head_dim));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/rows/bias_map_element.h"
#include "model/part_context.h"

namespace halflife::model {

struct Features {
  at::Tensor x;  // [B, T, H, F], dtype of what was mapped
  // [B, T, H] fp32 (fp64 beside fp64), without gradient: the features are exp(log_scale) x.
  // Undefined: x itself.
  at::Tensor log_scale = {};
};

class FeatureMap {
 public:
  virtual ~FeatureMap() = default;
  virtual Features operator()(const at::Tensor& x) const = 0;  // [B, T, H, d]; differentiable
  virtual int64_t width() const = 0;                           // F
  virtual bool has_log_scale() const { return false; }         // of the features
  // What the kernels know it by, who apply it in one pass with a bias.
  virtual std::optional<kernels::ElementMap> element_map() const { return std::nullopt; }

  // The elements of its matrices, which every head of every token is multiplied with.
  virtual int64_t num_matrix_elements() const { return 0; }
  // Elements that backward keeps for each head of a token, the features themselves left out.
  virtual int64_t num_activations() const { return 0; }
};

std::vector<std::string> FeatureMapNames();
// Declares what the map learns. `dim`: channels of a head, d. Error kInternal for a name that is
// not one of FeatureMapNames().
std::unique_ptr<FeatureMap> MakeFeatureMap(const std::string& name, const PartContext& context,
                                           int64_t dim);

}  // namespace halflife::model
