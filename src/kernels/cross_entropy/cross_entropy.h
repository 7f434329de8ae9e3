// Cross entropy of a block of logits as sums, with the term of the z-loss (the squared logarithm of the partition sum).
// A negative target means "no target here".
//
//   const CrossEntropySums sums = CrossEntropy(std::move(logits), targets);
//   ((sums.loss + 1e-4 * sums.z_loss) / num_targets).backward();
#pragma once

#include <ATen/core/Tensor.h>

namespace halflife::kernels {

struct CrossEntropySums {
  at::Tensor loss;    // scalar fp32: sum of ln Z - logit[target]
  at::Tensor z_loss;  // scalar fp32: sum of (ln Z)^2
};

// logits [N, vocab], targets [N] int64. Takes the logits over: on the CPU their memory becomes the softmax and then the
// gradient, so nothing of their size is allocated. Differentiable once.
CrossEntropySums CrossEntropy(at::Tensor logits, const at::Tensor& targets);

// ln Z - logit[target] per row, 0 where there is no target: [N] fp32. No gradient.
at::Tensor TokenCrossEntropy(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace halflife::kernels
