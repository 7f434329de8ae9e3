// The output layer and its cross entropy in one operation. The logits hidden weight^T exist for one
// block of rows at a time, and their gradient is converted to those of hidden and weight while the
// block is in the cache. There is never a [N, vocab] tensor.
//
//   const auto sums = LinearCrossEntropy({hidden, *head, targets}, {.z_loss_weight = 1e-4});
//   (sums.objective / num_targets).backward();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::ops {

struct LinearCrossEntropyInputs {
  at::Tensor hidden;  // [N, D] fp32, bf16 or fp64
  at::Tensor weight;  // [vocab, D], dtype of hidden
  // [N] int64; negative: the row has no target. A target outside the vocabulary throws an error
  // (exit 3) on the CPU and makes the sums NaN on a GPU.
  at::Tensor targets;
  // [N] fp32: factors of the losses of the rows in `objective` and `loss`, for example those of
  // preference training. Undefined: 1. They need a z_loss_weight of 0.
  at::Tensor row_weights = {};
};
struct LinearCrossEntropyConfig {
  double z_loss_weight = 0;
  int64_t rows_per_block = 0;  // 0: use CrossEntropyRowsPerBlock()
  // The number of rows that have a target, if the caller knows it; -1: unknown. If at most half of
  // the rows have one, the others are left out of the products. Throws an error if the number is
  // wrong.
  int64_t num_targets = -1;
  // Set if nothing else in the loss reads the weight. Its gradient may then go directly to its sink
  // (ops/torch/gradient_sink.h) in fp32.
  bool weight_is_own = false;
};

struct LinearCrossEntropySums {
  at::Tensor objective;  // scalar: loss + z_loss_weight z_loss. Differentiable once
  at::Tensor loss;       // scalar: sum of ln Z - logit[target]. Not differentiable
  at::Tensor z_loss;     // scalar: sum of (ln Z)^2. Not differentiable
};
// Logits, sums and the gradient of weight are computed in fp32 (fp64 for fp64 inputs). On a GPU
// bf16 operands are multiplied as they are stored, and the gradient of the logits is rounded to
// bf16 for that.
LinearCrossEntropySums LinearCrossEntropy(const LinearCrossEntropyInputs& inputs,
                                          const LinearCrossEntropyConfig& config);
// hidden [..., D] and weight [vocab, D] -> [..., vocab] in fp32 (fp64 for fp64 inputs).
// Differentiable. If no gradient is requested, a GPU multiplies bf16 as it is stored, as above.
at::Tensor LinearLogits(const at::Tensor& hidden, const at::Tensor& weight);

// Returns the number of rows whose logits are in memory at a time, a power of two of at least 64
// and at most num_rows. Their fp32 logits fit 64 MiB on the CPU, which is close to its cache sizes.
// On a GPU they fit 512 MiB, because each block of rows reads and writes the weight's gradient
// once, and its products must fill the device.
int64_t CrossEntropyRowsPerBlock(int64_t num_rows, int64_t vocab, bool gpu);
// Returns the number of rows that the products compute, see LinearCrossEntropyConfig::num_targets.
constexpr int64_t NumLossRows(int64_t num_targets, int64_t num_rows) {
  return num_targets < 0 || 2 * num_targets > num_rows ? num_rows : num_targets;
}

// Returns the peak memory of LinearCrossEntropy in a differentiated call, beyond its inputs: a
// block of logits, the two gradients and, for bf16 inputs on the CPU, the weight in fp32. On a GPU,
// the block's bf16 gradient overwrites the logits.
struct CrossEntropyStorage {
  bool bf16 = false, gpu = false;
};
double LinearCrossEntropyBytes(int64_t num_rows, int64_t vocab, int64_t dim,
                               CrossEntropyStorage storage);

// Returns ln Z - logit[target] of each row, 0 for rows without a target: [N] fp32 (fp64 for fp64
// inputs). No gradient.
at::Tensor LinearTokenCrossEntropy(const LinearCrossEntropyInputs& inputs,
                                   const LinearCrossEntropyConfig& config = {});

struct TokenScores {
  at::Tensor loss;     // [N] like LinearTokenCrossEntropy's result
  at::Tensor correct;  // [N] of the same dtype: 1 if the target has the largest logit, else 0
};
TokenScores LinearTokenScores(const LinearCrossEntropyInputs& inputs,
                              const LinearCrossEntropyConfig& config = {});

}  // namespace halflife::ops
