// Tokens to vectors: a table, an optional factor, an optional table of segments.
//
//   const TokenEmbedding embedding(config.embedding, context, /*vocab_size=*/259, /*aliases=*/{});
//   at::Tensor x = embedding(tokens, /*segments=*/{});
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/part_context.h"

namespace halflife::model {

struct EmbeddingOptions : OptionsOf<EmbeddingOptions> {
  double scale = 1;          // of the token's vector; 0: sqrt(model_dim)
  int64_t num_segments = 0;  // rows of the segment table; 0: none
  double dropout = 0;        // on the sum of all tables; 0: the model's dropout
  bool norm = false;         // of that sum, positions included, by the model's norm
  std::vector<Option> Fields() override;
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;
};

class TokenEmbedding {
 public:
  // `aliases`: other names of the table (a tied head). Parameters embeddings.weight and
  // segment_embeddings.weight.
  TokenEmbedding(EmbeddingOptions options, const PartContext& context, int64_t vocab_size,
                 std::vector<std::string> aliases);

  // tokens and segments [...] int64 -> [..., D]. Undefined segments are all 0.
  at::Tensor operator()(const at::Tensor& tokens, const at::Tensor& segments) const;
  const Parameter& table() const { return table_; }

 private:
  EmbeddingOptions options_;
  Parameter table_, segments_;
};

}  // namespace halflife::model
