// Causal convolution of a row with a filter of the row's length, in O(T log T): y_t = sum_{s <= t}
// h_{t-s} x_s + skip x_t. h is the filter multiplied by a window that decays at its own rate in
// each channel.
//
// Computed by LibTorch's FFT in fp32 (fp64 for fp64 inputs). A sum in the frequency domain rounds
// relative to the whole row. So a later token changes the last bits of an earlier output, and one
// NaN makes the whole channel NaN. Differentiable once.
//
//   const at::Tensor y = FftConv({.x = x, .filter = h, .skip = skip});  // [B, T, D]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::ops {

// The window's factor at token t in channel c is e^(t (first + c step)).
struct FilterWindow {
  double first = 0, step = 0;
};
// Returns filter [T, D] times its window.
at::Tensor Windowed(const at::Tensor& filter, const FilterWindow& window);

struct FftConvInputs {
  at::Tensor x;              // [B, T, D] fp32, bf16 or fp64
  at::Tensor filter;         // [T, D] fp32 (fp64 for fp64 inputs)
  FilterWindow window = {};  // applied to the filter
  at::Tensor skip = {};      // [D], dtype of the filter; undefined: 0
};
at::Tensor FftConv(const FftConvInputs& inputs);  // [B, T, D] in x's dtype

}  // namespace halflife::ops
