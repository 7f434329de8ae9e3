// The pairs of a batch of rows (data::RowLabels::kPreferences): which tokens belong to which
// answer, and the sums of token losses by answer.
//
// Documents 2 p and 2 p + 1 of a row are the sequences of pair p. A last document without a partner
// is padding.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "data/batch.h"
#include "model/sequence_parallel.h"

namespace halflife::train {

// Returns the number of pairs of each row of the batch.
std::vector<int64_t> CountPairs(const data::Batch& batch);

class PairRows {
 public:
  // `batch` has whole rows. With `parallel`, token losses are those of this rank's slice of them.
  PairRows(const data::Batch& batch, at::Device device, const model::SequenceParallel* parallel);

  int64_t num_pairs() const { return num_pairs_; }        // of the batch
  int64_t max_pairs() const { return lengths_.size(1); }  // P, at least 1
  // [B, P, 2] fp64: the numbers of tokens of the answers, over all slices.
  const at::Tensor& lengths() const { return lengths_; }

  // Adds up token losses [B, T of this rank] by answer: [B, P, 2] fp64, in memory of O(B T). The
  // order of the sum depends only on the row.
  at::Tensor Sums(const at::Tensor& token_losses) const;
  // Returns the value [B, P, 2] of each token's answer, [B, T of this rank] fp32, and 0 for tokens
  // of no answer.
  at::Tensor AtTokens(const at::Tensor& of_answers) const;

 private:
  int64_t num_pairs_ = 0;
  at::Tensor answer_;  // [B, T of this rank] int64: 2 pair + (0 chosen, 1 rejected), or -1
  at::Tensor lengths_;
};

}  // namespace halflife::train
