// Pairs of answers to a prompt: their loss (ComparePairs), and which tokens of a batch belong to
// which answer (PairRows).
//
// The loss of pairs of answers of which one is preferred (chosen) to the other (rejected),
// compared with a reference model that is not trained:
//
//   h = (ln pi(chosen) - ln ref(chosen)) - (ln pi(rejected) - ln ref(rejected))
//   dpo: -ln sigmoid(beta h)          (Rafailov et al. 2023, equation 7)
//   ipo: (h - 1 / (2 beta))^2         (Azar et al. 2023, equation 17)
//
// With dpo, ln pi(answer) is the sum over the tokens of the answer. With ipo, it is their mean, as
// in TRL and by the advice of the authors.
//
// Legend: B rows, P pairs per row; the last dimension of size 2 has chosen and rejected.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "data/batch.h"
#include "model/sequence_parallel.h"
#include "train/config/run_config.h"

namespace halflife::train {

// Sums of -ln p over the tokens of answers, [B, P, 2] fp64.
struct PairScores {
  at::Tensor policy, reference;
};

struct PairLosses {
  at::Tensor loss;     // [B, P]
  at::Tensor rewards;  // [B, P, 2]: beta (ln pi - ln ref), the implicit reward of an answer
  // [B, P, 2]: the derivative of the loss by PairScores::policy, which is the weight of the loss of
  // each token of the answer.
  at::Tensor weights;
};

// `lengths` [B, P, 2] fp64 are the numbers of tokens of the answers; 0 for a pair that does not
// exist, whose results are 0.
PairLosses ComparePairs(const PreferenceConfig& config, const PairScores& scores,
                        const at::Tensor& lengths);

// [4] fp64: the sums over pairs of the loss, the rewards of chosen and rejected answers, and the
// number of pairs whose chosen answer has the larger reward.
at::Tensor SumPairs(const PairLosses& pairs);

// Returns the number of pairs of each row of the batch.
std::vector<int64_t> CountPairs(const data::Batch& batch);

// The pairs of a batch of rows (data::RowLabels::kPreferences): which tokens belong to which
// answer, and the sums of token losses by answer.
//
// Documents 2 p and 2 p + 1 of a row are the sequences of pair p. A last document without a partner
// is padding.
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
