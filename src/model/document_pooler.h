// Pools the hidden vectors of each document into one vector, which a classifier reads.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/objectives/objective.h"
#include "model/part_context.h"
#include "model/sequence_slice.h"

namespace halflife::model {

// Returns the flat indices [P] int64 of the first tokens of the slice's P documents, in order. The
// slice must hold whole rows.
at::Tensor FirstTokens(const SequenceSlice& slice);

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
