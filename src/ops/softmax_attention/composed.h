// The same in LibTorch calls: for what CUDA's kernels do not take, and for whoever looks at scores.
#pragma once

#include <functional>

#include "ops/softmax_attention/softmax_attention.h"

namespace halflife::ops {

// What each query sees: as the caller says, or made from the positions.
VisibleKeys SeenBy(const SoftmaxAttentionInputs& inputs, const SoftmaxAttentionConfig& config);

// As SoftmaxAttention. Queries come in blocks, each with the keys that it may see.
at::Tensor ComposedSoftmaxAttention(const SoftmaxAttentionInputs& inputs,
                                    const SoftmaxAttentionConfig& config);

// Some queries of all rows, and all keys that any of them may see, from `first_key` on.
struct ScoreBlock {
  int64_t first_key = 0;
  at::Tensor scores;     // [B, H, T', S'] in the compute type, biases and factors included
  at::Tensor visible;    // [B, 1, T', S'] bool
  at::Tensor distances;  // [T', S'] int64, the query's place minus the key's
};
// Calls visit for block after block of queries.
void ForScoreBlocks(const SoftmaxAttentionInputs& inputs, const SoftmaxAttentionConfig& config,
                    const std::function<void(const ScoreBlock&)>& visit);

}  // namespace halflife::ops
