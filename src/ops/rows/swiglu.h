// Elementwise products with a gate. gate and up have one shape and dtype: fp32, bf16 or fp64.
// Differentiable. `dgate` is the buffer of the gate's gradient, for a gate that is columns of a
// matrix. Without it, the gradients of gate and up are adjacent if gate and up are.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/torch/column_slices.h"

namespace halflife::ops {

// Returns silu(gate) * up (Shazeer, 2020).
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up, const ColumnSlice& dgate = {});
// Returns sigmoid(gate) * up (Dauphin et al., 2017).
at::Tensor Glu(const at::Tensor& gate, const at::Tensor& up, const ColumnSlice& dgate = {});

}  // namespace halflife::ops
