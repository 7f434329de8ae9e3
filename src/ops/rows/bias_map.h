// Projections with their biases or gains, and what each is mapped by, in one pass over all of them:
// out = map(gain x + bias), rounded once. Differentiable; a bias or gain whose owner has a sink for
// its gradient (ops/torch/gradient_sink.h) gets it there. Gradients of columns of one matrix
// are columns of one again.
//
//   const auto heads = BiasMap({{.x = q, .bias = *q_bias, .map = ElementMap::kEluPlusOne},
//                               {.x = k, .bias = *k_bias, .map = ElementMap::kEluPlusOne},
//                               {.x = v, .bias = *v_bias}});
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/rows/bias_map_element.h"
#include "ops/torch/column_places.h"

namespace halflife::ops {

struct BiasedInput {
  at::Tensor x;     // [..., C_i], of one dtype and the same leading dimensions for all
  at::Tensor bias;  // [C_i]; undefined: none
  kernels::ElementMap map = kernels::ElementMap::kIdentity;
  ColumnPlace gradient = {};  // where the gradient of x goes
  at::Tensor gain = {};       // [C_i] fp32 (fp64 beside fp64), of the identity alone; undefined: 1
};

// One a part, of x's shape: contiguous, or x itself where there is nothing to do.
std::vector<at::Tensor> BiasMap(const std::vector<BiasedInput>& parts);

}  // namespace halflife::ops
