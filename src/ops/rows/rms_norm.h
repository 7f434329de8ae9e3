// Root-mean-square norm over the last dimension: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and
// Sennrich, 2019). Variants: with a gate, as linear mixers use it per head, and with the
// preceding residual sum. All tensors except the weight have one dtype, fp32, bf16 or fp64.
// Arithmetic is fp32 (fp64 for fp64 inputs), and y has x's dtype. Differentiable.
//
//   const at::Tensor y = RmsNorm(x, *weight, 1e-6);
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/rows/rms_norm_args.h"
#include "ops/torch/column_slices.h"

namespace halflife::ops {

// x [..., D] with D >= 1, weight [D].
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// RmsNorm(x) * silu(gate), or sigmoid(gate) instead of SiLU: x and gate [..., V], weight [V].
// `dgate` is the buffer of the gate's gradient.
at::Tensor GatedRmsNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                        double eps, kernels::NormGate gate_kind = kernels::NormGate::kSilu,
                        const ColumnSlice& dgate = {});

// The step between two layers of a pre-norm block: sum = x + branch, normed = RmsNorm(sum). One
// pass over memory in each direction.
struct ResidualNorm {
  at::Tensor sum, normed;
};
ResidualNorm AddRmsNorm(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                        double eps);

// Scales rows to Euclidean norm 1: y = x / sqrt(sum(x^2) + eps) over the last dimension, as delta
// rule layers need for queries and keys. Arithmetic is fp32 (fp64 for fp64 inputs), and y has x's
// dtype. Differentiable; backward keeps y instead of x. One pass scales q and k.
struct UnitNormPair {
  at::Tensor q, k;  // [..., D] of one shape and dtype, D >= 1
};
UnitNormPair UnitNorm(const UnitNormPair& x, double eps);

}  // namespace halflife::ops
