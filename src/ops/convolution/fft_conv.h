// Causal convolution of a row with a filter as long as itself, in O(T log T): y_t = sum_{s <= t}
// h_{t-s} x_s + skip x_t, h being the filter under a window that decays at a rate of its own in
// each channel. One pass over a channel's rows in fp32, or LibTorch's FFT: for fp64, and on a GPU
// for rows whose transforms outgrow a block's shared memory. A sum in frequencies rounds by the
// whole row: a later token moves the last bits of an earlier output, and its NaN is a NaN
// everywhere in the channel. Differentiable once; a skip or filter whose owner has a sink for its
// gradient (ops/torch/gradient_sink.h) gets it there.
//
//   const at::Tensor y = FftConv({.x = x, .filter = h, .skip = skip});  // [B, T, D]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::ops {

// A filter's factor at token t in channel c is e^(t (first + c step)).
struct FilterWindow {
  double first = 0, step = 0;
};
// filter [T, D] times its window.
at::Tensor Windowed(const at::Tensor& filter, const FilterWindow& window);

struct FftConvInputs {
  at::Tensor x;              // [B, T, D] fp32, bf16 or fp64
  at::Tensor filter;         // [T, D], fp32 (fp64 beside fp64)
  FilterWindow window = {};  // of the filter
  at::Tensor skip = {};      // [D], as the filter; undefined: 0
};
at::Tensor FftConv(const FftConvInputs& inputs);  // [B, T, D] in x's dtype

// The same between two gates: x1 * v is convolved, x2 times that is the result.
struct GatedFftConvInputs {
  at::Tensor branches;  // [B, T, 3 D]: x1, x2 and v beside each other
  at::Tensor filter;    // [T, D]
  FilterWindow window = {};
  at::Tensor skip = {};  // [D]; undefined: 0
};
at::Tensor GatedFftConv(const GatedFftConvInputs& inputs);  // [B, T, D]

}  // namespace halflife::ops
