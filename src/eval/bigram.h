// The yardstick that a language model has to beat: an add-one-smoothed bigram model of the training
// split,
//   p(b | a) = (count(a b) + 1) / (count(a) + vocab),
// counted and scored on the same targets as the model. With resets at documents, a document's first
// token is not a target. On the training split itself it is told what it has counted: a bound, no
// yardstick.
#pragma once

#include "data/dataset.h"

namespace halflife::eval {

struct BigramResult {
  double loss = 0;  // mean -ln p per target
  int64_t num_targets = 0;
  double bits_per_byte = 0;  // data::BitsPerByte of the loss
};
// Scores the windows of `scored` that ChooseWindows gives, which are those that Validate scores.
// `reset_at_documents` as in data::TokenView. Memory is vocab^2 x 4 bytes: Error kUsage above a
// vocabulary of 20,000.
BigramResult ScoreBigram(const data::Dataset& dataset, data::Split scored, int64_t seq_len,
                         int64_t num_windows, bool reset_at_documents = true);

}  // namespace halflife::eval
