// Products with a gate, elementwise over equal shapes of one dtype: fp32, bf16 or fp64.
// Differentiable.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::kernels {

// silu(gate) * up (Shazeer, 2020).
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);
// sigmoid(gate) * up (Dauphin et al., 2017).
at::Tensor Glu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace halflife::kernels
