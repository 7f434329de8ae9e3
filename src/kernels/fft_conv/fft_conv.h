// Causal convolution of a row with a filter as long as itself, in O(T log T): y_t = sum_{s <= t}
// filter_{t-s} x_s. LibTorch's FFT in fp32 (fp64 beside fp64), of twice the length, so that nothing
// wraps around. A sum in frequencies rounds by the whole row: a later token moves the last bits of
// an earlier output, and its NaN is a NaN everywhere. Differentiable once; its backward keeps x and
// the filter's spectrum.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::kernels {

struct FftConvInputs {
  at::Tensor x;       // [B, T, D] fp32, bf16 or fp64
  at::Tensor filter;  // [T, D], fp32 (fp64 beside fp64)
};

at::Tensor FftConv(const FftConvInputs& inputs);  // [B, T, D] in x's dtype

}  // namespace halflife::kernels
