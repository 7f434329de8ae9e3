// Maps tokens to vectors: an embedding table, an optional scale, and an optional table of segments.
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

}  // namespace halflife::model
