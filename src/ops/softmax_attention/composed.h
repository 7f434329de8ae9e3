// Softmax attention in LibTorch calls: for calls that the CUDA kernels do not support, and for
// callers that inspect scores.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "ops/softmax_attention/softmax_attention.h"
#include "ops/torch/column_slices.h"

namespace halflife::ops {

// Returns the keys that each query sees: as given by the caller, or derived from the positions.
VisibleKeys SeenBy(const SoftmaxAttentionInputs& inputs, const SoftmaxAttentionConfig& config);

// Computes SoftmaxAttention() in blocks of queries, each with the keys that it may see.
at::Tensor ComposedSoftmaxAttention(const SoftmaxAttentionInputs& inputs,
                                    const SoftmaxAttentionConfig& config);

// The scores of some queries of all rows against all keys, from `first_key` on, that any of them
// may see.
struct ScoreBlock {
  int64_t first_key = 0;
  at::Tensor scores;     // [B, H, T', S'] in the compute type, including biases and factors
  at::Tensor visible;    // [B, 1, T', S'] bool
  at::Tensor distances;  // [T', S'] int64, the query's index minus the key's
};
// Calls visit for each block of queries in order.
void ForScoreBlocks(const SoftmaxAttentionInputs& inputs, const SoftmaxAttentionConfig& config,
                    const std::function<void(const ScoreBlock&)>& visit);

// LibTorch's attention with a deterministic order of sums, also in the backward.
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
