// Softmax attention in LibTorch calls: for calls that the CUDA kernels do not support, and for
// callers that inspect scores.
#pragma once

#include <functional>

#include "ops/softmax_attention/softmax_attention.h"

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

}  // namespace halflife::ops
