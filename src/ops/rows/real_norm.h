// Rows less their mean, over their standard deviation: y = (x - mean) / (s + eps), where s divides
// by one less than the channels and eps stands outside the root (specification leap_fastformer 1.2;
// no affine part, so it is not a layer norm). A row that does not vary gives zeros, and with an eps
// its gradient is that of (x - mean) / eps.
//
//   const at::Tensor y = RealNorm(heads, 1e-5);   // heads [B, T, H, n]
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::ops {

// x [..., n], n >= 2, fp32, bf16 or fp64 -> like x, fp32 (fp64 beside fp64). Differentiable.
at::Tensor RealNorm(const at::Tensor& x, double eps);

}  // namespace halflife::ops
