// A filter that a network of sines makes out of positions, for every channel one: layers of a
// product, a bias and a sine whose frequencies are learned (Sitzmann et al., Implicit neural
// representations with periodic activation functions, 2020), then a product. One pass over the
// tokens in each direction and the products of the last matrix's gradients. Differentiable once; a
// parameter whose owner has a sink for its gradient (ops/torch/gradient_sink.h) gets it there.
//
//   const at::Tensor h = SineFilter({.x = *positions, .num_tokens = 512,
//                                    .weights = {*w1, *w2}, .biases = {*b1, *b2},
//                                    .frequency = *f, .output = *w3});   // [512, D]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace halflife::ops {

// fp32, or fp64 all of them.
struct SineFilterInputs {
  at::Tensor x;  // [..., P], of whose rows the first num_tokens are read
  int64_t num_tokens = 0;
  std::vector<at::Tensor> weights;  // [W, P], then [W, W]
  std::vector<at::Tensor> biases;   // [W], as many
  at::Tensor frequency;             // [W]
  at::Tensor output;                // [D, W]
};

at::Tensor SineFilter(const SineFilterInputs& inputs);  // [num_tokens, D]

}  // namespace halflife::ops
