// A convolution filter that a small network computes from positions, for all channels at once:
// layers of a matrix product, a bias and a sine with learned frequencies (Sitzmann et al., Implicit
// neural representations with periodic activation functions, 2020), then a last product. Each
// direction makes one pass over the tokens; the gradients of the last matrix are separate products.
// Differentiable once; the gradient of a parameter that has a sink (ops/torch/gradient_sink.h) goes
// to the sink.
//
//   const at::Tensor h = SineFilter({.x = *positions, .num_tokens = 512,
//                                    .weights = {*w1, *w2}, .biases = {*b1, *b2},
//                                    .frequency = *f, .output = *w3});   // [512, D]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace halflife::ops {

// All tensors are fp32 or all are fp64.
struct SineFilterInputs {
  at::Tensor x;  // [..., P]; only the first num_tokens rows are read
  int64_t num_tokens = 0;
  std::vector<at::Tensor> weights;  // [W, P] for the first layer, [W, W] for the others
  std::vector<at::Tensor> biases;   // [W], one per layer
  at::Tensor frequency;             // [W]
  at::Tensor output;                // [D, W]
};

at::Tensor SineFilter(const SineFilterInputs& inputs);  // [num_tokens, D]

}  // namespace halflife::ops
