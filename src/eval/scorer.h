// Log-probabilities of given tokens: ln p(ids[i+1] | ids[..i]), or, of a model that learnt to name
// hidden tokens, ln p(ids[i+1] | all others), each hidden in a copy of its own (Salazar et al.,
// 2020). Long sequences are streamed in pieces on a carried state, so that memory does not grow
// with the length (for mixers whose state does not); short ones share a batch.
//
//   for (const std::vector<size_t>& batch : ScoreBatches(lengths, config))
//     ScoreBatch(model, sequences_of(batch), config);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/score_config.h"
#include "model/language_model.h"

namespace halflife::eval {

// Cuts the sequences (by index) into batches of similar length. This depends on lengths and config
// alone, so that any number of ranks computes the same numbers. Sequences of fewer than two tokens
// have nothing to score and are left out.
std::vector<std::vector<size_t>> ScoreBatches(std::span<const size_t> lengths,
                                              const ScoreConfig& config);

// Returns one vector a sequence, one shorter than it, fp32. Error kUsage for an id outside the
// model's vocabulary, and where the objective gives no such probabilities.
std::vector<std::vector<float>> ScoreBatch(const model::LanguageModel& model,
                                           std::span<const std::span<const int32_t>> sequences,
                                           const ScoreConfig& config);

}  // namespace halflife::eval
