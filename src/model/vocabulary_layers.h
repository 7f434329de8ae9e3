// The layers at both ends of a model: the embedding, the output head, and the pooler of documents
// that a classifier reads (below).
//
// TokenEmbedding maps tokens to vectors: an embedding table, an optional scale, and an optional
// table of segments.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/objectives/objective.h"
#include "model/part_context.h"
#include "model/sequence_slice.h"
#include "ops/cross_entropy/linear_cross_entropy.h"

namespace halflife::model {

struct EmbeddingOptions : OptionsOf<EmbeddingOptions> {
  double scale = 1;          // Factor of the token's vector. 0: sqrt(model_dim).
  int64_t num_segments = 0;  // Rows of the segment table. 0: no table.
  double dropout = 0;        // Rate on the sum of all tables. 0: the model's dropout.
  bool norm = false;         // Applies the model's norm to that sum, which includes positions.
  std::vector<Option> Fields() override;
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;
};

class TokenEmbedding {
 public:
  // Declares the parameters embeddings.weight and segment_embeddings.weight. `aliases` are other
  // names of the token table (for a tied head).
  TokenEmbedding(EmbeddingOptions options, const PartContext& context, int64_t vocab_size,
                 std::vector<std::string> aliases);

  // Maps tokens and segments [...] int64 to [..., D]. If `segments` is undefined, all tokens belong
  // to segment 0.
  at::Tensor operator()(const at::Tensor& tokens, const at::Tensor& segments) const;
  const Parameter& table() const { return table_; }

 private:
  EmbeddingOptions options_;
  Parameter table_, segments_;
};

// Maps hidden vectors to logits and losses: a matrix, which may be shared with the embedding, an
// optional bias and an optional scale.
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

  // Returns true if the loss needs a second, scaled copy of the hidden vectors.
  bool scales_hidden() const { return logit_scale_ != 1; }

  at::Tensor Logits(const at::Tensor& hidden) const;  // [..., D] -> [..., vocab] fp32
  // hidden [N, D], targets [N] int64, row_weights [N] fp32 or undefined.
  ops::LinearCrossEntropySums Loss(const at::Tensor& hidden, const at::Tensor& targets,
                                   const ops::LinearCrossEntropyConfig& config,
                                   const at::Tensor& row_weights = {}) const;
  at::Tensor TokenLosses(const at::Tensor& hidden, const at::Tensor& targets,
                         const ops::LinearCrossEntropyConfig& config = {}) const;  // [N] fp32
  ops::TokenScores TokenScores(const at::Tensor& hidden, const at::Tensor& targets,
                               const ops::LinearCrossEntropyConfig& config) const;

 private:
  ops::LinearCrossEntropyInputs Inputs(const at::Tensor& hidden, const at::Tensor& targets) const;
  bool tied_ = false;
  double logit_scale_ = 1;
  Parameter weight_, bias_;
};

// Returns the flat indices [P] int64 of the first tokens of the slice's P documents, in order. The
// slice must hold whole rows.
at::Tensor FirstTokens(const SequenceSlice& slice);

// Pools the hidden vectors of each document into one vector, which a classifier reads.
class DocumentPooler {
 public:
  // Declares the parameters pooler.dense.weight and pooler.dense.bias if options.dense is set.
  DocumentPooler(const ClassifierOptions& options, const PartContext& context);

  // Pools hidden [B, T, D] of whole rows to [P, D] in the dtype of `hidden`. `firsts` [P] is the
  // result of FirstTokens. Means are summed in fp32.
  at::Tensor operator()(const at::Tensor& hidden, const at::Tensor& firsts) const;
  double FlopsPerDocument() const;

 private:
  enum class Pooling : uint8_t { kFirst, kMean, kLast } pooling_;
  int64_t model_dim_;
  Parameter weight_, bias_;
};

}  // namespace halflife::model
