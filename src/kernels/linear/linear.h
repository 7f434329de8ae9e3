// Linear layers of one input: y_i = x weight_i^T. Their input gradients are added up inside the matmuls instead of by
// separate passes over tensors of x's size. Differentiable.
//
//   const auto y = SharedInputLinear(x, {*gate_proj, *up_proj});
//   return SwiGlu(y[0], y[1]);
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace halflife::kernels {

// x [..., D], weights [out_i, D] -> [..., out_i].
std::vector<at::Tensor> SharedInputLinear(const at::Tensor& x,
                                          const std::vector<at::Tensor>& weights);

}  // namespace halflife::kernels
