// Causal convolution of a row with a filter of the row's length, in O(T log T): y_t = sum_{s <= t}
// h_{t-s} x_s + skip x_t. h is the filter multiplied by a window that decays at its own rate in
// each channel.
//
// The fused kernels make one pass over a channel's rows in fp32. LibTorch's FFT is used for fp64
// and, on a GPU, for rows whose transforms do not fit a block's shared memory.
//
// A sum in the frequency domain rounds relative to the whole row. So a later token changes the last
// bits of an earlier output, and one NaN makes the whole channel NaN.
//
// Differentiable once. The gradient of a skip or filter that has a sink (ops/torch/gradient_sink.h)
// goes to the sink.
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

// The same between two gates: x1 * v is convolved, and the result is multiplied by x2.
struct GatedFftConvInputs {
  at::Tensor branches;  // [B, T, 3 D]: x1, x2 and v in adjacent columns
  at::Tensor filter;    // [T, D]
  FilterWindow window = {};
  at::Tensor skip = {};  // [D]; undefined: 0
};
at::Tensor GatedFftConv(const GatedFftConvInputs& inputs);  // [B, T, D]

}  // namespace halflife::ops
