// A linear layer of bf16 on a CPU whose own products of bf16 are slow: in fp32, a block of rows at
// a time, so that their wide copies stay in the caches. Sums are fp32 and rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/linear/linear_products.h"

namespace halflife::ops {

// Whether rows x [..., D] should be multiplied so.
bool UsesWidened(const at::Tensor& x, at::TensorList weights);

// x [..., D], weights [out_i, D] -> [..., out_i].
std::vector<at::Tensor> WidenedForward(const at::Tensor& x, at::TensorList weights);
LinearGrads WidenedBackward(const LinearGradCall& call);

}  // namespace halflife::ops
