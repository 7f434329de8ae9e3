// Mamba's selective scan (Gu and Dao, 2023): N states per channel. The token's own step size
// determines how much they decay and how much they take up.
//
//   step_t = softplus(delta_t + delta_bias)
//   h_t = e^{step_t a} h_{t-1} + step_t x_t b_t,   y_t = c_t . h_t + skip x_t
//
//   const auto [y, state] = SelectiveScan(
//       {.x = x, .delta = delta, .delta_bias = *bias, .a = *a_log, .negative_exp = true,
//        .b = b, .c = c, .skip = *d});
//
// The states of the tokens are never all in memory. The forward keeps one state per 32 tokens (16
// on a GPU), and the backward recomputes the others from those. Differentiable in all inputs except
// starts; the gradient of a weight that has a sink (ops/torch/gradient_sink.h) goes to the sink.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "ops/sequence/row_segment.h"
#include "ops/torch/column_slices.h"

namespace halflife::ops {

struct SelectiveScanInputs {
  at::Tensor x, delta;    // [B, T, I] fp32, bf16 or fp64 (on the CPU)
  at::Tensor delta_bias;  // [I]; the dtypes of delta_bias, a, b, c and skip are independent of x's
  at::Tensor a;           // [I, N], negative; N is at most 256
  // true: `a` holds p and the kernel uses -e^p, the form that Mamba learns
  bool negative_exp = false;
  at::Tensor b, c;  // [B, T, N]; may be columns of one matrix, which are not copied
  at::Tensor skip;  // [I]
  // Buffers for the gradients of b and c and, on the CPU only, for those of x and delta and for y.
  ColumnSlice b_gradient = {}, c_gradient = {};
  ColumnSlice x_gradient = {}, delta_gradient = {}, y_place = {};
  // [B, T] bool: document starts, at which the state is reset; undefined: none.
  at::Tensor starts = {};
  // [B, I, N] in the compute type: the state before the first token; undefined: zero.
  at::Tensor initial = {};
  // For rows that are split over ranks. Such a call has no initial state and returns no final
  // state.
  std::shared_ptr<const RowSegment> segment = {};
};
struct SelectiveScanOutputs {
  at::Tensor y;      // [B, T, I] in the dtype of x
  at::Tensor final;  // [B, I, N] in the compute type
};
SelectiveScanOutputs SelectiveScan(const SelectiveScanInputs& inputs);

// Processes one more token of every row: x and delta [B, I], b and c [B, N] -> [B, I]. `state` [B,
// I, N] is updated in place. No gradient.
struct SelectiveScanStepInputs {
  at::Tensor x, delta, delta_bias, a;
  bool negative_exp = false;
  at::Tensor b, c, skip;
};
at::Tensor SelectiveScanStep(const SelectiveScanStepInputs& inputs, at::Tensor& state);

// Runs SelectiveScan() on inputs with a segment. Returns only `y`, because only the last rank has
// the final state of a row.
SelectiveScanOutputs OverSegments(const SelectiveScanInputs& inputs);

}  // namespace halflife::ops
