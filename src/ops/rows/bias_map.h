// Adds a bias or applies a gain to several projections and maps each of them, in one pass over all:
// out = map(gain x + bias), rounded once. Differentiable; the gradient of a bias or gain that has a
// sink (ops/torch/gradient_sink.h) goes to the sink. If the inputs are columns of one matrix, so
// are their gradients.
//
//   const auto heads = BiasMap({{.x = q, .bias = *q_bias, .map = ElementMap::kEluPlusOne},
//                               {.x = k, .bias = *k_bias, .map = ElementMap::kEluPlusOne},
//                               {.x = v, .bias = *v_bias}});
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/rows/bias_map_args.h"
#include "ops/torch/column_slices.h"

namespace halflife::ops {

struct BiasedInput {
  at::Tensor x;     // [..., C_i]; dtype and leading dimensions are the same for all parts
  at::Tensor bias;  // [C_i]; undefined: none
  kernels::ElementMap map = kernels::ElementMap::kIdentity;
  ColumnSlice gradient = {};  // buffer of x's gradient
  // [C_i] fp32 (fp64 for fp64 inputs); requires the identity map; undefined: 1
  at::Tensor gain = {};
};

// Returns one output per part, of x's shape: a contiguous tensor, or x itself if the part has no
// bias, gain or map.
std::vector<at::Tensor> BiasMap(const std::vector<BiasedInput>& parts);

}  // namespace halflife::ops
