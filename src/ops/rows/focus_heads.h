// The operations of focus mixers on the heads of a token before and after their pool
// (kernels/focus_pool), in one pass before it and one after it. Before: standardization of heads
// (kernels/rows/layer_norm_args.h), log weights as dot products with a direction, and the pooled
// rows. After: the gate on the pooled output.
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

#include "ops/torch/column_slices.h"

namespace halflife::ops {

struct FocusLeavesInputs {
  at::Tensor x;  // [B, T, H n] fp32, bf16 or fp64; columns of a matrix are read without a copy
  at::Tensor times = {};  // like x; x is multiplied by it; undefined: no factor
  // Like x, or one direction for all tokens: H n elements in the compute type.
  at::Tensor direction;
  at::Tensor value = {};  // like x, appended to x in the payload; undefined: none
  // Buffers for the gradients, for inputs that are columns of a matrix.
  ColumnSlice x_gradient = {}, times_gradient = {}, direction_gradient = {}, value_gradient = {};
};
struct FocusLeavesConfig {
  int64_t head_dim = 0;  // n
  bool norm = false;     // standardize x and direction
  bool norm_value = false;
  bool pool_x = true;  // false: the payload is only the value, which must be given
  double eps = 0;      // added to the standard deviation
  double scale = 1;    // factor on the dot product of x and direction
  bool elu = false;    // true: the weight is elu(dot) + 1 instead of exp(dot)
};
struct FocusLeaves {
  at::Tensor log_weight;  // [B, T, H] fp32 (fp64 for fp64 inputs)
  // [B, T, H, n or 2 n] in the dtype of x: x, the value, or x followed by the value
  at::Tensor payload;
};
// Differentiable. The gradient of a per-head direction that has a sink (ops/torch/gradient_sink.h)
// goes to the sink.
FocusLeaves MakeFocusLeaves(const FocusLeavesInputs& inputs, const FocusLeavesConfig& config);

// Returns ln(elu(l) + 1), which is l for l < 0 and ln(1 + l) otherwise; 1 + expm1(l) would round to
// 0 below -17. Any shape, differentiable.
at::Tensor LogOfEluPlusOne(const at::Tensor& l);

struct FocusGateInputs {
  at::Tensor query;  // [B, T, H n], like x above
  // [B, T, H, P], dtype of query: the first n channels enter the gate, the last n are gated
  at::Tensor pooled;
  ColumnSlice query_gradient = {};
};
struct FocusGateConfig {
  bool norm = false;  // standardize query
  double eps = 0, scale = 1;
};
// Returns sigmoid(scale query . first n channels) times the last n channels, [B, T, H n].
// Differentiable.
at::Tensor FocusGate(const FocusGateInputs& inputs, const FocusGateConfig& config);

}  // namespace halflife::ops
