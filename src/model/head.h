// Hidden vectors to logits and losses: a matrix that may be the embedding's, an optional bias, an
// optional factor.
//
//   const OutputHead head(config.head, context, vocab_size, embedding.table());
//   const auto sums = head.Loss(hidden, targets, {.z_loss_weight = 1e-4});
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/cross_entropy/linear_cross_entropy.h"
#include "model/part_context.h"

namespace halflife::model {

struct HeadOptions : OptionsOf<HeadOptions> {
  bool tied = false;  // with the embedding
  bool bias = false;
  double logit_scale = 1;  // of the logits, with their bias; 0: 1 / sqrt(model_dim)
  std::vector<Option> Fields() override {
    return {{"tied", &tied}, {"bias", &bias}, {"logit_scale", &logit_scale}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;
};

class OutputHead {
 public:
  // `options` are resolved. Parameters lm_head.weight (untied) and lm_head.bias.
  OutputHead(const HeadOptions& options, const PartContext& context, int64_t vocab_size,
             const Parameter& embedding);
  // A head over classes in place of tokens, with classifier.weight and classifier.bias.
  OutputHead(const PartContext& context, int64_t num_classes);

  // Whether the loss is formed from a second, scaled copy of the hidden vectors.
  bool scales_hidden() const { return logit_scale_ != 1; }

  at::Tensor Logits(const at::Tensor& hidden) const;  // [..., D] -> [..., vocab] fp32
  // hidden [N, D], targets [N] int64.
  kernels::LinearCrossEntropySums Loss(const at::Tensor& hidden, const at::Tensor& targets,
                                       const kernels::LinearCrossEntropyConfig& config) const;
  at::Tensor TokenLosses(const at::Tensor& hidden, const at::Tensor& targets) const;  // [N] fp32
  kernels::TokenScores TokenScores(const at::Tensor& hidden, const at::Tensor& targets,
                                   const kernels::LinearCrossEntropyConfig& config) const;

 private:
  kernels::LinearCrossEntropyInputs Inputs(const at::Tensor& hidden,
                                           const at::Tensor& targets) const;
  bool tied_ = false;
  double logit_scale_ = 1;
  Parameter weight_, bias_;
};

}  // namespace halflife::model
