// Standardizes rows: y = (x - mean) / (s + eps), where s is the standard deviation with Bessel's
// correction and eps is added outside the square root (the RealNorm of LEAP). There
// are no affine parameters, so this is not a layer norm. A constant row gives zeros; with eps > 0
// its gradient is that of (x - mean) / eps.
//
//   const at::Tensor y = RealNorm(heads, 1e-5);   // heads [B, T, H, n]
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::ops {

// x [..., n], n >= 2, fp32, bf16 or fp64 -> the same shape, fp32 (fp64 for fp64 inputs).
// Differentiable.
at::Tensor RealNorm(const at::Tensor& x, double eps);

}  // namespace halflife::ops
