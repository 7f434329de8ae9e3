// Softmax cross entropy of a block of logits, row by row and in place.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::kernels::internal {

// loss[r] = ln Z - logits[r, target[r]] and log_partition[r] = ln Z; both 0 where the target is negative.
struct CrossEntropyRows {
  at::Tensor loss, log_partition;  // [R] in the logits' dtype
};

// logits [R, vocab] fp32 or fp64, contiguous; targets [R] int64. With `gradient`, the logits are overwritten by
// d(loss + z_loss_weight ln^2 Z) / d logits = (1 + 2 z_loss_weight ln Z) softmax - onehot, zero where there is no target.
// On the CPU, Error (exit 3) for a target outside the vocabulary.
CrossEntropyRows ReduceRows(at::Tensor& logits, const at::Tensor& targets, double z_loss_weight,
                            bool gradient);

}  // namespace halflife::kernels::internal
