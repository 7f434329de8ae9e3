#include "model/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>

#include <cmath>

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
    segments_ = DeclareMatrix(context, "segment_embeddings.weight",
                              {.out = options_.num_segments, .in = context.model_dim()});
}

at::Tensor TokenEmbedding::operator()(const at::Tensor& tokens, const at::Tensor& segments) const {
  at::Tensor x = at::embedding(*table_, tokens);
  if (options_.scale != 1) x = x * options_.scale;
  if (!segments_.declared()) return x;
  return x + (segments.defined() ? at::embedding(*segments_, segments) : segments_->select(0, 0));
}

}  // namespace halflife::model
