// A bf16 linear layer for CPUs with slow bf16 products. It multiplies in fp32, one block of rows at
// a time, so that the fp32 copies stay in the caches. Sums are fp32 and are rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/linear/linear_products.h"

namespace halflife::ops {

// Returns true if rows x [..., D] should be multiplied this way.
bool UsesWidened(const at::Tensor& x, at::TensorList weights);

// x [..., D], weights [out_i, D] -> [..., out_i].
std::vector<at::Tensor> WidenedForward(const at::Tensor& x, at::TensorList weights);
LinearGrads WidenedBackward(const LinearGradCall& call);

}  // namespace halflife::ops
