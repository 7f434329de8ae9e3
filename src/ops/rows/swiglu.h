// Products with a gate, elementwise over equal shapes of one dtype: fp32, bf16 or fp64.
// Differentiable. `dgate`: where the gradient of a gate goes that is columns of a matrix; else
// those of a gate and an up beside each other lie so too.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/torch/column_places.h"

namespace halflife::ops {

// silu(gate) * up (Shazeer, 2020).
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up, const ColumnPlace& dgate = {});
// sigmoid(gate) * up (Dauphin et al., 2017).
at::Tensor Glu(const at::Tensor& gate, const at::Tensor& up, const ColumnPlace& dgate = {});

}  // namespace halflife::ops
