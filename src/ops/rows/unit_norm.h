// Scales rows to Euclidean norm 1: y = x / sqrt(sum(x^2) + eps) over the last dimension, as delta
// rule layers need for queries and keys. Arithmetic is fp32 (fp64 for fp64 inputs), and y has x's
// dtype. Differentiable; backward keeps y instead of x.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::ops {

// q and k [..., D] of one shape and dtype, D >= 1. One pass scales both.
struct UnitNormPair {
  at::Tensor q, k;
};
UnitNormPair UnitNorm(const UnitNormPair& x, double eps);

}  // namespace halflife::ops
