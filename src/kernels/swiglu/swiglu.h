// SwiGLU's product (Shazeer, 2020): silu(gate) * up, elementwise over equal shapes of one dtype:
// fp32, bf16 or fp64. Differentiable.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::kernels {

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace halflife::kernels
