// The hidden vectors of a document as one, which a classifier reads.
//
//   const DocumentPooler pooler(options, context);
//   const at::Tensor documents = pooler(hidden, FirstTokens(slice));
#pragma once

#include <ATen/core/Tensor.h>

#include "model/objectives/objective.h"
#include "model/part_context.h"
#include "model/sequence_slice.h"

namespace halflife::model {

// Returns the flat places [P] int64 of the first tokens of the P documents of whole rows, in order.
at::Tensor FirstTokens(const SequenceSlice& slice);

class DocumentPooler {
 public:
  // Parameters pooler.dense.weight and pooler.dense.bias, where options.dense asks for them.
  DocumentPooler(const ClassifierOptions& options, const PartContext& context);

  // hidden [B, T, D] of whole rows, firsts [P] of FirstTokens -> [P, D], in the dtype of hidden;
  // means are summed in fp32.
  at::Tensor operator()(const at::Tensor& hidden, const at::Tensor& firsts) const;
  double FlopsPerDocument() const;

 private:
  enum class Pooling : uint8_t { kFirst, kMean, kLast } pooling_;
  int64_t model_dim_;
  Parameter weight_, bias_;
};

}  // namespace halflife::model
