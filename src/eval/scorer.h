// Log-probabilities of given tokens: ln p(ids[i+1] | ids[..i]). For a masked-token model, ln
// p(ids[i+1] | all other tokens), where each token is hidden in its own copy of the sequence
// (Salazar et al., 2020).
// Long sequences are processed in pieces with a carried state, so that memory does not grow with
// the length (if the mixers' states do not grow). Short sequences share a batch.
//
//   for (const std::vector<size_t>& batch : ScoreBatches(lengths, config))
//     ScoreBatch(model, sequences_of(batch), config);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "data/batch.h"
#include "eval/eval_options.h"
#include "model/language_model.h"

namespace halflife::eval {

// Groups the sequences (by index) into batches of similar length. The result depends only on
// lengths and config, so that any number of ranks computes the same numbers. Sequences of fewer
// than two tokens are omitted, because they have nothing to score.
std::vector<std::vector<size_t>> ScoreBatches(std::span<const size_t> lengths,
                                              const ScoreConfig& config);

// Returns one fp32 vector per sequence, which has one element less than the sequence. Throws kUsage
// for ids outside the model's vocabulary, and if the objective does not define such probabilities.
std::vector<std::vector<float>> ScoreBatch(const model::LanguageModel& model,
                                           std::span<const std::span<const int32_t>> sequences,
                                           const ScoreConfig& config);

// Scores rows that are too long for memory. A row is processed in pieces, and each piece continues
// from the state after the previous one. The losses equal those of whole rows up to rounding.
//
//   const at::Tensor losses = CarriedLosses(model, batch, /*piece=*/2048);
//
// Returns -ln p of the batch's targets, [B, T] fp32, or 0 for tokens without a target. The model's
// state must have a constant size. Every document starts from an empty state. The memory of a
// forward pass depends on `piece`, not on T; only the ids and losses of the whole row are kept.
at::Tensor CarriedLosses(const model::LanguageModel& model, const data::Batch& batch,
                         int64_t piece);

}  // namespace halflife::eval
