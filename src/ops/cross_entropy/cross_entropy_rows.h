// Softmax cross entropy of a block of logits, row by row and in place.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/cross_entropy/cross_entropy_args.h"

namespace halflife::ops::internal {

// loss[r] = ln Z - logits[r, target[r]] and log_partition[r] = ln Z. Both are 0 if the target is
// negative.
struct CrossEntropyRows {
  at::Tensor loss, log_partition;  // [R] in the logits' dtype

  CrossEntropyRows Narrow(int64_t first, int64_t count) const {
    return {.loss = loss.narrow(0, first, count),
            .log_partition = log_partition.narrow(0, first, count)};
  }
};
CrossEntropyRows EmptyRows(int64_t num_rows, const at::TensorOptions& options);

using kernels::LogitGradient;

// logits [R, vocab] fp32 or fp64, contiguous; targets [R] int64. If a gradient is requested,
// overwrites the logits by d(loss + z_loss_weight ln^2 Z) / d logits = (1 + 2 z_loss_weight ln Z)
// softmax - onehot, which is zero for rows without a target. kFp32 keeps the logits' dtype;
// kBf16 needs fp32 logits on a GPU and leaves Bf16Gradient(logits). A target outside the vocabulary
// throws an error (exit 3) on the CPU and gives NaN on a GPU.
void ReduceRows(at::Tensor& logits, const at::Tensor& targets, double z_loss_weight,
                LogitGradient gradient, const CrossEntropyRows& out);
// Returns the view [R, vocab] bf16 of the memory of logits [R, vocab] fp32 that holds their bf16
// gradient. Its rows are 2 vocab elements apart.
at::Tensor Bf16Gradient(const at::Tensor& logits);

}  // namespace halflife::ops::internal
