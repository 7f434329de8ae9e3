// LibTorch's attention with a deterministic order of sums, also in the backward.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/torch/column_slices.h"

namespace halflife::ops {

struct OrderedAttentionInputs {
  at::Tensor q, k, v;    // [B, H, T, d], [B, Hk, S, d], [B, Hk, S, V]; Hk divides H
  at::Tensor mask = {};  // [B or 1, H or 1, T, S]: bool, or added to the scores; undefined: none
  bool causal = false;
  double scale = 1;
  // Buffers [B, T, heads, d] to which the gradients are copied if deterministic algorithms are set.
  ColumnSlice q_gradient = {}, k_gradient = {}, v_gradient = {};
};

// Returns [B, H, T, V], differentiable in all four tensors. If LibTorch is set to deterministic
// algorithms with warnings only (train::PrepareDevice, because some operations have no
// deterministic form), its fused attention still accumulates dq in arbitrary order. This function
// turns warnings into errors for its two passes, so that LibTorch selects the deterministic form.
at::Tensor OrderedAttention(const OrderedAttentionInputs& inputs);

}  // namespace halflife::ops
