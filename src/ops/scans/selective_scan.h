// Mamba's selective scan (Gu and Dao, 2023): N states a channel, which decay and take up as much as
// the token's own step says,
//
//   step_t = softplus(delta_t + delta_bias)
//   h_t = e^{step_t a} h_{t-1} + step_t x_t b_t,   y_t = c_t . h_t + skip x_t
//
//   const auto [y, state] = SelectiveScan(
//       {.x = x, .delta = delta, .delta_bias = *bias, .a = *a_log, .negative_exp = true,
//        .b = b, .c = c, .skip = *d});
//
// The states of all tokens are never in memory: backward goes forward from one kept in 32 (on a GPU
// in 16) once more. Differentiable in all but starts; a weight whose owner has a sink for its
// gradient (ops/torch/gradient_sink.h) gets it there.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "ops/sequence/row_segment.h"
#include "ops/torch/column_places.h"

namespace halflife::ops {

struct SelectiveScanInputs {
  at::Tensor x, delta;        // [B, T, I] fp32, bf16 or fp64 (on the CPU)
  at::Tensor delta_bias;      // [I]; it, a, b, c and skip of any of these dtypes
  at::Tensor a;               // [I, N] < 0; N up to 256
  bool negative_exp = false;  // a holds p of -e^p, as Mamba learns it
  at::Tensor b, c;            // [B, T, N]; columns of one matrix are read in their place
  at::Tensor skip;            // [I]
  // Where theirs go, and on the CPU those of x and delta and y.
  ColumnPlace b_gradient = {}, c_gradient = {};
  ColumnPlace x_gradient = {}, delta_gradient = {}, y_place = {};
  // [B, T] bool: documents, before which the state is dropped; or undefined.
  at::Tensor starts = {};
  // [B, I, N] in the compute type: before the first token; undefined: zero.
  at::Tensor initial = {};
  // Rows of which other ranks hold the rest: from no initial state, and without a final one.
  std::shared_ptr<const RowSegment> segment = {};
};
struct SelectiveScanOutputs {
  at::Tensor y;      // [B, T, I] in the dtype of x
  at::Tensor final;  // [B, I, N] in the compute type
};
SelectiveScanOutputs SelectiveScan(const SelectiveScanInputs& inputs);

// One token more of every row: x and delta [B, I], b and c [B, N] -> [B, I]. `state` [B, I, N]
// moves on in place. No gradient.
struct SelectiveScanStepInputs {
  at::Tensor x, delta, delta_bias, a;
  bool negative_exp = false;
  at::Tensor b, c, skip;
};
at::Tensor SelectiveScanStep(const SelectiveScanStepInputs& inputs, at::Tensor& state);

}  // namespace halflife::ops
