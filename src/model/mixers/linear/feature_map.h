// Feature maps of linear attention: phi(q) . phi(k) replaces the similarity exp(q . k). These are
// the maps of fla's LinearAttention and of D2D.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/rows/bias_map_args.h"
#include "model/part_context.h"
#include "ops/torch/column_slices.h"

namespace halflife::model {

struct Features {
  at::Tensor x;  // [B, T, H, F], dtype of the input
  // [B, T, H] fp32 (fp64 for fp64 inputs), without gradient. The features are exp(log_scale) x.
  // Undefined: the features are x.
  at::Tensor log_scale = {};
  ops::ColumnSlice gradient = {};  // buffer of the gradient of x
};

class FeatureMap {
 public:
  virtual ~FeatureMap() = default;
  virtual Features operator()(const at::Tensor& x) const = 0;  // [B, T, H, d]; differentiable
  virtual int64_t width() const = 0;                           // F
  virtual bool has_log_scale() const { return false; }         // Features::log_scale is defined
  // Returns the kernels' name of the map, if they have it. They can then apply it in one pass with
  // a bias.
  virtual std::optional<kernels::ElementMap> element_map() const { return std::nullopt; }

  // Returns the number of elements of its matrices. Every head of every token is multiplied with
  // them.
  virtual int64_t num_matrix_elements() const { return 0; }
  // Returns the number of elements that backward keeps per head of a token, without the features
  // themselves.
  virtual int64_t num_activations() const { return 0; }
};

std::vector<std::string> FeatureMapNames();
// Makes a map and declares its parameters. `dim` is the number of channels of a head, d. Throws
// kInternal for a name that is not in FeatureMapNames().
std::unique_ptr<FeatureMap> MakeFeatureMap(const std::string& name, const PartContext& context,
                                           int64_t dim);

}  // namespace halflife::model
