// What focus mixers do with the channels of each head of a token before and behind their pool
// (kernels/focus_pool), in one pass each: standardised heads (kernels/real_norm), the log weight
// that a direction gives them, what is pooled, and the gate on the pooled rows.
//
//   const double scale = c / static_cast<double>(n);
//   const FocusLeaves leaves = MakeFocusLeaves(
//       {.x = k, .direction = f, .value = v},
//       {.head_dim = n, .norm = true, .norm_value = true, .eps = 1e-5, .scale = scale});
//   const auto pooled = FocusPool({.log_weight = leaves.log_weight, .u = leaves.payload},
//                                 {.window = 64});
//   const at::Tensor y = FocusGate({.query = q, .pooled = pooled.out},
//                                  {.norm = true, .eps = 1e-5, .scale = scale});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/torch/column_places.h"

namespace halflife::ops {

struct FocusLeavesInputs {
  at::Tensor x;  // [B, T, H n] fp32, bf16 or fp64; columns of a matrix are read in their place
  at::Tensor times = {};  // like x, with which it is multiplied; undefined: nothing
  at::Tensor direction;   // like x, or of heads alone: H n elements in the compute type
  at::Tensor value = {};  // like x, pooled behind it; undefined: none
  ColumnPlace x_gradient = {}, times_gradient = {}, direction_gradient = {},
              value_gradient = {};  // where theirs go, as columns of a matrix
};
struct FocusLeavesConfig {
  int64_t head_dim = 0;  // n
  bool norm = false;     // of x and direction
  bool norm_value = false;
  bool pool_x = true;  // else the value alone, which is given then
  double eps = 0;      // of the standardisation
  double scale = 1;    // on the dot of x and direction
  bool elu = false;    // the weight is elu(dot) + 1 in place of its exponential
};
struct FocusLeaves {
  at::Tensor log_weight;  // [B, T, H] fp32 (fp64 beside fp64)
  at::Tensor payload;     // [B, T, H, n or 2 n] in the dtype of x: x, the value, or x and the value
};
// Differentiable. A direction of heads whose owner has a sink for its gradient
// (ops/torch/gradient_sink.h) gets it there.
FocusLeaves MakeFocusLeaves(const FocusLeavesInputs& inputs, const FocusLeavesConfig& config);

// ln(elu(l) + 1) = l below 0, ln(1 + l) above: 1 + expm1(l) would round to 0 from -17 on. Of any
// shape, differentiable.
at::Tensor LogOfEluPlusOne(const at::Tensor& l);

struct FocusGateInputs {
  at::Tensor query;   // [B, T, H n], as x above
  at::Tensor pooled;  // [B, T, H, P], the dtype of query: the first n are seen, the last n pass
  ColumnPlace query_gradient = {};
};
struct FocusGateConfig {
  bool norm = false;  // of query
  double eps = 0, scale = 1;
};
// sigmoid(scale query . seen) times what passes, [B, T, H n]. Differentiable.
at::Tensor FocusGate(const FocusGateInputs& inputs, const FocusGateConfig& config);

}  // namespace halflife::ops
