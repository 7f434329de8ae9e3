// Softmax cross entropy of a block of logits, row by row and in place.
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::ops::internal {

// loss[r] = ln Z - logits[r, target[r]] and log_partition[r] = ln Z; both 0 where the target is
// negative.
struct CrossEntropyRows {
  at::Tensor loss, log_partition;  // [R] in the logits' dtype

  CrossEntropyRows Narrow(int64_t first, int64_t count) const {
    return {.loss = loss.narrow(0, first, count),
            .log_partition = log_partition.narrow(0, first, count)};
  }
};
CrossEntropyRows EmptyRows(int64_t num_rows, const at::TensorOptions& options);

// logits [R, vocab] fp32 or fp64, contiguous; targets [R] int64. With `gradient`, the logits are
// overwritten by d(loss + z_loss_weight ln^2 Z) / d logits = (1 + 2 z_loss_weight ln Z) softmax -
// onehot, zero where there is no target. For a target outside the vocabulary: on the CPU Error
// (exit 3), on a GPU NaN.
void ReduceRows(at::Tensor& logits, const at::Tensor& targets, double z_loss_weight, bool gradient,
                const CrossEntropyRows& out);

}  // namespace halflife::ops::internal
