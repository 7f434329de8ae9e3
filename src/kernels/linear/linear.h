// Linear layers of one input: y_i = x weight_i^T. Their input gradients are added up inside the
// matmuls instead of by separate passes over tensors of x's size. Differentiable. Sums are fp32
// whatever the storage, and rounded once.
//
//   const auto y = SharedInputLinear(x, {*gate_proj, *up_proj});
//   return Linear(SwiGlu(y[0], y[1]), *down_proj);
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace halflife::kernels {

// x [..., D], weights [out_i, D] -> [..., out_i].
std::vector<at::Tensor> SharedInputLinear(const at::Tensor& x,
                                          const std::vector<at::Tensor>& weights);
// One of them.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight);

// The gradient of one's weight: dy^T x of dy [tokens, out] and x [tokens, D]. fp32 on the CPU takes
// the kernel of weight_gradient.h where that is faster than BLAS, and no gradient of it is wanted.
at::Tensor WeightGradient(const at::Tensor& dy, const at::Tensor& x);

}  // namespace halflife::kernels
