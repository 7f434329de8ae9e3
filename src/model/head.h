// Maps hidden vectors to logits and losses: a matrix, which may be shared with the embedding, an
// optional bias and an optional scale.
//
//   const OutputHead head(config.head, context, vocab_size, embedding.table());
//   const auto sums = head.Loss(hidden, targets, {.z_loss_weight = 1e-4});
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/part_context.h"
#include "ops/cross_entropy/linear_cross_entropy.h"

namespace halflife::model {

struct HeadOptions : OptionsOf<HeadOptions> {
  bool tied = false;  // Shares the embedding's matrix.
  bool bias = false;
  double logit_scale = 1;  // Factor of the logits, including the bias. 0: 1 / sqrt(model_dim).
  std::vector<Option> Fields() override {
    return {{"tied", &tied}, {"bias", &bias}, {"logit_scale", &logit_scale}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;
};

class OutputHead {
 public:
  // `options` are resolved. Declares the parameters lm_head.weight (unless tied) and lm_head.bias.
  OutputHead(const HeadOptions& options, const PartContext& context, int64_t vocab_size,
             const Parameter& embedding);
  // Makes a head over classes instead of tokens, with the parameters classifier.weight and
  // classifier.bias.
  OutputHead(const PartContext& context, int64_t num_classes);

  // True if the loss needs a second, scaled copy of the hidden vectors.
  bool scales_hidden() const { return logit_scale_ != 1; }

  at::Tensor Logits(const at::Tensor& hidden) const;  // [..., D] -> [..., vocab] fp32
  // hidden [N, D], targets [N] int64.
  ops::LinearCrossEntropySums Loss(const at::Tensor& hidden, const at::Tensor& targets,
                                   const ops::LinearCrossEntropyConfig& config) const;
  at::Tensor TokenLosses(const at::Tensor& hidden, const at::Tensor& targets) const;  // [N] fp32
  ops::TokenScores TokenScores(const at::Tensor& hidden, const at::Tensor& targets,
                               const ops::LinearCrossEntropyConfig& config) const;

 private:
  ops::LinearCrossEntropyInputs Inputs(const at::Tensor& hidden, const at::Tensor& targets) const;
  bool tied_ = false;
  double logit_scale_ = 1;
  Parameter weight_, bias_;
};

}  // namespace halflife::model
