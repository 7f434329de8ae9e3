// The output layer and its cross entropy in one: logits = hidden weight^T exist for a block of rows
// at a time, and their gradient is turned into those of hidden and weight while the block is in the
// cache. Never a [N, vocab] tensor.
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
  // [N] int64; negative: no target here. Outside the vocabulary: on the CPU Error, exit 3; on a GPU
  // the sums are NaN
  at::Tensor targets;
};
struct LinearCrossEntropyConfig {
  double z_loss_weight = 0;
  int64_t rows_per_block = 0;  // 0: as CrossEntropyRowsPerBlock
  // Rows that have a target, where the caller knows. If they are at most half, the others are left
  // out of the products, to which they give nothing; Error where there are not as many.
  int64_t num_targets = -1;
  // That nothing else in the loss reads the weight: its gradient may then go to its sink
  // (torch/gradient_sink.h) as it was formed, in fp32.
  bool weight_is_own = false;
};

struct LinearCrossEntropySums {
  at::Tensor objective;  // scalar: loss + z_loss_weight z_loss. Differentiable, once
  at::Tensor loss;       // scalar: sum of ln Z - logit[target]. No gradient
  at::Tensor z_loss;     // scalar: sum of (ln Z)^2. No gradient
};
// Logits, sums and the gradient of weight are formed in fp32 (fp64 beside fp64). On a GPU bf16
// operands are multiplied as they are, the logits' gradient rounded to bf16 among them.
LinearCrossEntropySums LinearCrossEntropy(const LinearCrossEntropyInputs& inputs,
                                          const LinearCrossEntropyConfig& config);
// hidden [..., D] and weight [vocab, D] -> [..., vocab] in fp32 (fp64 beside fp64). Differentiable;
// where no gradient is wanted a GPU multiplies bf16 as it is stored, as above.
at::Tensor LinearLogits(const at::Tensor& hidden, const at::Tensor& weight);

// How many of `num_rows` rows have logits at a time: the power of two whose fp32 logits fit 64 MiB
// on the CPU, near its caches. On a GPU 512 MiB: each block reads and writes the weight's gradient
// once, and its products must fill the device. At least 64, at most all.
int64_t CrossEntropyRowsPerBlock(int64_t num_rows, int64_t vocab, bool gpu);

// Most that LinearCrossEntropy holds at once while it differentiates, beyond its inputs: a block of
// logits, the two gradients, and of bf16 inputs the weight in fp32 on the CPU, on a GPU the block's
// gradient in bf16.
struct CrossEntropyStorage {
  bool bf16 = false, gpu = false;
};
double LinearCrossEntropyBytes(int64_t num_rows, int64_t vocab, int64_t dim,
                               CrossEntropyStorage storage);

// ln Z - logit[target] of each row, 0 where there is no target: [N] fp32 (fp64 beside fp64). No
// gradient.
at::Tensor LinearTokenCrossEntropy(const LinearCrossEntropyInputs& inputs,
                                   const LinearCrossEntropyConfig& config = {});

struct TokenScores {
  at::Tensor loss;     // [N] as LinearTokenCrossEntropy's
  at::Tensor correct;  // [N] of that dtype: 1 where the target has the largest logit, else 0
};
TokenScores LinearTokenScores(const LinearCrossEntropyInputs& inputs,
                              const LinearCrossEntropyConfig& config = {});

}  // namespace halflife::ops
