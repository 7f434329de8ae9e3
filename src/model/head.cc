#include "model/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

namespace halflife::model {

OutputHead::OutputHead(const HeadOptions& options, const PartContext& context, int64_t vocab_size,
                       const Parameter& embedding)
    : tied_(options.tied) {
  weight_ = options.tied ? embedding
                         : DeclareMatrix(context, "lm_head.weight",
                                         {.out = vocab_size, .in = context.model_dim()});
  if (options.bias) bias_ = DeclareBias(context, "lm_head.bias", vocab_size);
}

OutputHead::OutputHead(const PartContext& context, int64_t num_classes)
    : weight_(DeclareMatrix(context, "classifier.weight",
                            {.out = num_classes, .in = context.model_dim()})),
      bias_(DeclareBias(context, "classifier.bias", num_classes)) {}

at::Tensor OutputHead::Logits(const at::Tensor& hidden) const {
  const at::Tensor logits = kernels::LinearLogits(hidden, *weight_);
  return bias_.declared() ? logits + bias_->to(logits.scalar_type()) : logits;
}

// The fused cross entropy knows matrices alone: a bias is one more column of the weight, against a
// channel of ones. That copies the weight once a step, which a rare option may.
kernels::LinearCrossEntropyInputs OutputHead::Inputs(const at::Tensor& hidden,
                                                     const at::Tensor& targets) const {
  if (!bias_.declared()) return {hidden, *weight_, targets};
  const at::Tensor ones = at::ones({hidden.size(0), 1}, hidden.options().requires_grad(false));
  return {at::cat({hidden, ones}, 1), at::cat({*weight_, bias_->unsqueeze(1)}, 1), targets};
}

kernels::LinearCrossEntropySums OutputHead::Loss(
    const at::Tensor& hidden, const at::Tensor& targets,
    const kernels::LinearCrossEntropyConfig& config) const {
  kernels::LinearCrossEntropyConfig own = config;
  own.weight_is_own = !tied_;
  return kernels::LinearCrossEntropy(Inputs(hidden, targets), own);
}

at::Tensor OutputHead::TokenLosses(const at::Tensor& hidden, const at::Tensor& targets) const {
  return kernels::LinearTokenCrossEntropy(Inputs(hidden, targets));
}

kernels::TokenScores OutputHead::TokenScores(
    const at::Tensor& hidden, const at::Tensor& targets,
    const kernels::LinearCrossEntropyConfig& config) const {
  return kernels::LinearTokenScores(Inputs(hidden, targets), config);
}

}  // namespace halflife::model
