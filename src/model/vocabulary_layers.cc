#include "model/vocabulary_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/tanh.h>

#include <cmath>

#include "core/error.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/host_transfer.h"

namespace halflife::model {

std::vector<Option> EmbeddingOptions::Fields() {
  return {{"scale", &scale},
          {"num_segments", &num_segments, {.min = 0}},
          {"dropout", &dropout},
          {"norm", &norm}};
}

void EmbeddingOptions::Resolve(const ModelSizes& sizes, ProblemList& problems) {
  problems.Require(scale >= 0 && std::isfinite(scale), "option scale is ", scale,
                   ". Use a number above 0, or 0 for sqrt(model_dim).");
  problems.Require(dropout >= 0 && dropout < 1, "option dropout is ", dropout,
                   ". Use a number in [0, 1).");
  if (scale == 0) scale = std::sqrt(static_cast<double>(sizes.model_dim));
}

TokenEmbedding::TokenEmbedding(EmbeddingOptions options, const PartContext& context,
                               int64_t vocab_size, std::vector<std::string> aliases)
    : options_(std::move(options)) {
  table_ = context.parameters->Declare({.name = context.prefix + "embeddings.weight",
                                        .shape = {vocab_size, context.model_dim()},
                                        .weight_decay = true,
                                        .aliases = std::move(aliases)},
                                       context.MatrixInit(context.model_dim()));
  if (options_.num_segments > 0)
    segments_ = DeclareTable(context, "segment_embeddings.weight",
                             {.out = options_.num_segments, .in = context.model_dim()});
}

at::Tensor TokenEmbedding::operator()(const at::Tensor& tokens, const at::Tensor& segments) const {
  at::Tensor x = at::embedding(*table_, tokens);
  if (options_.scale != 1) x = x * options_.scale;
  if (!segments_.declared()) return x;
  return x + (segments.defined() ? at::embedding(*segments_, segments) : segments_->select(0, 0));
}

void HeadOptions::Resolve(const ModelSizes& sizes, ProblemList& problems) {
  problems.Require(logit_scale >= 0 && std::isfinite(logit_scale), "option logit_scale is ",
                   logit_scale, ". Use a number above 0, or 0 for 1 / sqrt(model_dim).");
  if (logit_scale == 0) logit_scale = 1 / std::sqrt(static_cast<double>(sizes.model_dim));
}

OutputHead::OutputHead(const HeadOptions& options, const PartContext& context, int64_t vocab_size,
                       const Parameter& embedding)
    : tied_(options.tied), logit_scale_(options.logit_scale) {
  weight_ = options.tied ? embedding
                         : DeclareTable(context, "lm_head.weight",
                                        {.out = vocab_size, .in = context.model_dim()});
  if (options.bias) bias_ = DeclareBias(context, "lm_head.bias", vocab_size);
}

OutputHead::OutputHead(const PartContext& context, int64_t num_classes)
    : weight_(DeclareTable(context, "classifier.weight",
                           {.out = num_classes, .in = context.model_dim()})),
      bias_(DeclareBias(context, "classifier.bias", num_classes)) {}

at::Tensor OutputHead::Logits(const at::Tensor& hidden) const {
  at::Tensor logits = ops::LinearLogits(hidden, *weight_);
  if (bias_.declared()) logits = logits + bias_->to(logits.scalar_type());
  return logit_scale_ == 1 ? logits : logits * logit_scale_;
}

// The fused cross entropy supports only a weight matrix. A bias becomes one more column of the
// weight, and the hidden vectors get a channel of ones. This copies the weight once per step, which
// is acceptable for a rarely used option. The logit scale is applied to the hidden vectors, because
// they have fewer elements than the logits.
ops::LinearCrossEntropyInputs OutputHead::Inputs(const at::Tensor& hidden,
                                                 const at::Tensor& targets) const {
  at::Tensor rows = hidden, weight = *weight_;
  if (bias_.declared()) {
    const at::Tensor ones = at::ones({hidden.size(0), 1}, hidden.options().requires_grad(false));
    rows = at::cat({hidden, ones}, 1);
    weight = at::cat({weight, bias_->unsqueeze(1)}, 1);
  }
  if (logit_scale_ != 1) rows = rows * logit_scale_;
  return {rows, weight, targets};
}

ops::LinearCrossEntropySums OutputHead::Loss(const at::Tensor& hidden, const at::Tensor& targets,
                                             const ops::LinearCrossEntropyConfig& config,
                                             const at::Tensor& row_weights) const {
  ops::LinearCrossEntropyConfig own = config;
  own.weight_is_own = !tied_;
  ops::LinearCrossEntropyInputs inputs = Inputs(hidden, targets);
  inputs.row_weights = row_weights;
  return ops::LinearCrossEntropy(inputs, own);
}

at::Tensor OutputHead::TokenLosses(const at::Tensor& hidden, const at::Tensor& targets,
                                   const ops::LinearCrossEntropyConfig& config) const {
  return ops::LinearTokenCrossEntropy(Inputs(hidden, targets), config);
}

ops::TokenScores OutputHead::TokenScores(const at::Tensor& hidden, const at::Tensor& targets,
                                         const ops::LinearCrossEntropyConfig& config) const {
  return ops::LinearTokenScores(Inputs(hidden, targets), config);
}

namespace {

// Returns the position after the last token of each document.
at::Tensor Ends(const at::Tensor& firsts, int64_t num_tokens) {
  return at::cat(
      {firsts.narrow(0, 1, firsts.size(0) - 1), at::full({1}, num_tokens, firsts.options())});
}

}  // namespace

at::Tensor FirstTokens(const SequenceSlice& slice) {
  HL_CHECK(slice.begin == 0 && slice.segment == nullptr,
           "pooling needs whole rows, but this slice is a part of longer rows");
  if (!slice.has_boundaries())
    return at::arange(0, slice.batch * slice.seq_len, slice.seq_len, slice.positions.options());
  return ops::UploadValues(
      std::vector<int64_t>(slice.document_starts.begin(), slice.document_starts.end()),
      slice.positions.device());
}

DocumentPooler::DocumentPooler(const ClassifierOptions& options, const PartContext& context)
    : pooling_(options.pooling == "first"  ? Pooling::kFirst
               : options.pooling == "last" ? Pooling::kLast
                                           : Pooling::kMean),
      model_dim_(context.model_dim()) {
  if (!options.dense) return;
  weight_ = DeclareMatrix(context, "pooler.dense.weight", {.out = model_dim_, .in = model_dim_});
  bias_ = DeclareBias(context, "pooler.dense.bias", model_dim_);
}

at::Tensor DocumentPooler::operator()(const at::Tensor& hidden, const at::Tensor& firsts) const {
  const at::Tensor tokens = hidden.flatten(0, 1);
  at::Tensor pooled;
  if (pooling_ == Pooling::kFirst) {
    // index_select is not used here: its backward on a GPU waits for the host.
    pooled = at::embedding(tokens, firsts);
  } else if (pooling_ == Pooling::kLast) {
    pooled = at::embedding(tokens, Ends(firsts, tokens.size(0)) - 1);
  } else {
    // unsafe=true skips a check that would read the lengths on the host. The lengths come from the
    // slice and are valid.
    pooled = at::segment_reduce(tokens.to(ops::ComputeType(tokens)), "mean",
                                Ends(firsts, tokens.size(0)) - firsts, /*indices=*/{},
                                /*offsets=*/{}, /*axis=*/0, /*unsafe=*/true)
                 .to(tokens.scalar_type());
  }
  if (!weight_.declared()) return pooled;
  return at::tanh(at::linear(pooled, *weight_, bias_->to(pooled.scalar_type())));
}

double DocumentPooler::FlopsPerDocument() const {
  return weight_.declared() ? 2.0 * static_cast<double>(model_dim_ * model_dim_) : 0;
}

}  // namespace halflife::model
