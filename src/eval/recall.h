// Which targets a text has already said: the share of the loss that recall from context could mend.
// Arora et al. (2024, "Based", 5.4) call a later occurrence of a token "associative recall"; the
// bigram is the stricter form of the same group (Zoology, without its bound on how often training
// saw it).
//
//   const RecallFlags flags = FindRecalled(batch);
//   const bool seen = flags.bigram_seen[row * static_cast<size_t>(batch.seq_len) + t];
#pragma once

#include <cstdint>
#include <vector>

#include "data/batch.h"

namespace halflife::eval {

// [B, T] each, 0 or 1; 0 where there is no target. What came before is what the model sees: the
// tokens up to and with t of the same document in the same row.
struct RecallFlags {
  std::vector<uint8_t> token_seen;   // the target is among those tokens
  std::vector<uint8_t> bigram_seen;  // it has followed the token at t before
};
// Returns the flags of next-token targets, on the host.
RecallFlags FindRecalled(const data::Batch& batch);

}  // namespace halflife::eval
