// The convolution by LibTorch's FFT of twice the length, so that nothing wraps around. The backward
// keeps x and the filter's spectrum.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::ops {

// x [B, T, D], filter [T, D], both fp32 or both fp64 -> [B, T, D] of the same dtype. Differentiable
// once.
at::Tensor ComposedFftConv(const at::Tensor& x, const at::Tensor& filter);

}  // namespace halflife::ops
