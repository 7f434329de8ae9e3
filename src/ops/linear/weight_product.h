// The product of a weight's gradient, dy^T x, by the fastest method for the operands.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::ops {

// Returns dy^T x for dy [tokens, out] and x [tokens, D], in their dtype. fp32 on the CPU uses the
// kernel of linear_products.h if that is faster than BLAS and the product need not be
// differentiable.
at::Tensor WeightGradient(const at::Tensor& dy, const at::Tensor& x);

// Returns true if products of such operands can be accumulated in memory of the compute dtype.
// False only for bf16 on the CPU, where BLAS rounds its result to bf16.
bool HasWideProducts(const at::Tensor& x);
// Computes sum = dy^T x or, if `added`, sum += dy^T x. sum [out, D] is contiguous and of the
// compute dtype; HasWideProducts(x) must hold. Nothing is recorded for autograd.
void SumWeightGradient(at::Tensor& sum, bool added, const at::Tensor& dy, const at::Tensor& x);

}  // namespace halflife::ops
