// The product of a weight's gradient, dy^T x, by what is fastest for these operands here.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::ops {

// Of dy [tokens, out] and x [tokens, D], in their dtype. fp32 on the CPU takes the kernel of
// weight_gradient.h where that is faster than BLAS, and no gradient of it is wanted.
at::Tensor WeightGradient(const at::Tensor& dy, const at::Tensor& x);

// Whether products of such operands can be summed in memory of the compute dtype: all but bf16 on
// the CPU, whose BLAS rounds what it has summed.
bool HasWideProducts(const at::Tensor& x);
// sum = dy^T x or, `added`, sum + dy^T x; sum [out, D] contiguous, in the compute dtype of operands
// that have wide products. Nothing is recorded.
void SumWeightGradient(at::Tensor& sum, bool added, const at::Tensor& dy, const at::Tensor& x);

}  // namespace halflife::ops
