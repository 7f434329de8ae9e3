// A baseline that a language model should beat: an add-one-smoothed bigram model of the training
// split,
//   p(b | a) = (count(a b) + 1) / (count(a) + vocab),
// scored on the same targets as the model. With resets at documents, the first token of a document
// is not a target. On the training split itself, the bigram model scores the text that it has
// counted, so there the result is a bound and not a fair baseline.
#pragma once

#include "data/dataset.h"

namespace halflife::eval {

struct BigramResult {
  double loss = 0;  // Mean -ln p per target.
  int64_t num_targets = 0;
  double bits_per_byte = 0;  // data::BitsPerByte of the loss.
};
// Scores the windows of `scored` that ChooseWindows selects, which are the windows that Validate
// scores. See data::TokenView for `reset_at_documents`. Needs vocab^2 x 4 bytes. Throws kUsage if
// the vocabulary exceeds 20,000 tokens.
BigramResult ScoreBigram(const data::Dataset& dataset, data::Split scored, int64_t seq_len,
                         int64_t num_windows, bool reset_at_documents = true);

}  // namespace halflife::eval
