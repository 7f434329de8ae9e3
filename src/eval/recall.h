// Finds the targets that occurred earlier in their text: the share of the loss that recall from
// context could reduce. Arora et al. (2024, "Based", 5.4) call a later occurrence of a token
// "associative recall". The bigram is a stricter criterion (as in Zoology, but without its limit on
// the frequency in the training data).
//
//   const RecallFlags flags = FindRecalled(batch);
//   const bool seen = flags.bigram_seen[row * static_cast<size_t>(batch.seq_len) + t];
#pragma once

#include <cstdint>
#include <vector>

#include "data/batch.h"

namespace halflife::eval {

// Flags [B, T], 0 or 1; 0 for tokens without a target. The context of token t is what the model
// sees: the tokens of the same document in the same row, up to and including t.
struct RecallFlags {
  std::vector<uint8_t> token_seen;   // The target occurs in the context.
  std::vector<uint8_t> bigram_seen;  // The target has followed the token at t before.
};
// Returns the flags of next-token targets, on the host.
RecallFlags FindRecalled(const data::Batch& batch);

}  // namespace halflife::eval
