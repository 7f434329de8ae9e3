// LibTorch's attention in the form whose sums have one order, also in backward.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::ops {

struct OrderedAttentionInputs {
  at::Tensor q, k, v;    // [B, H, T, d], [B, Hk, S, d], [B, Hk, S, V]; Hk divides H
  at::Tensor mask = {};  // [B or 1, H or 1, T, S] bool, or added to scores; undefined: none
  bool causal = false;
  double scale = 1;
};

// [B, H, T, V], differentiable in all four. Where LibTorch is to be deterministic but only warns
// (train::PrepareDevice), as some of its operations know no other way, its fused attention still
// adds up dq as it comes: for its two passes this asks for no exception.
at::Tensor OrderedAttention(const OrderedAttentionInputs& inputs);

}  // namespace halflife::ops
