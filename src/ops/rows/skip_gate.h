// The skip connection and the gate behind a state-space scan with heads (Dao and Gu, 2024), in one
// pass: out = (y + skip_h x) silu(gate), with one factor per head h. All tensors except `skip` have
// one dtype, fp32, bf16 or fp64. Arithmetic is fp32 (fp64 for fp64 inputs); out is rounded once.
// Differentiable; the gradient of a skip that has a sink (ops/torch/gradient_sink.h) goes to the
// sink.
//
//   const at::Tensor out = SkipGate({.y = y, .x = v, .skip = *d, .gate = z});
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/torch/column_slices.h"

namespace halflife::ops {

struct SkipGateInputs {
  at::Tensor y;                    // [..., H P]
  at::Tensor x;                    // like y; columns of a matrix are read without a copy
  at::Tensor skip;                 // [H] fp32 (fp64 for fp64 inputs)
  at::Tensor gate = {};            // like x; undefined: none
  ColumnSlice gate_gradient = {};  // buffer of the gate's gradient
};
at::Tensor SkipGate(const SkipGateInputs& inputs);  // [..., H P]

}  // namespace halflife::ops
