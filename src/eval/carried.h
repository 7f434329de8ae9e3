// Scores rows that are too long for memory. A row is processed in pieces, and each piece continues
// from the state after the previous one. The losses equal those of whole rows up to rounding.
//
//   const at::Tensor losses = CarriedLosses(model, batch, /*piece=*/2048);
#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"
#include "model/language_model.h"

namespace halflife::eval {

// Returns -ln p of the batch's targets, [B, T] fp32, or 0 for tokens without a target. The model's
// state must have a constant size. Every document starts from an empty state. The memory of a
// forward pass depends on `piece`, not on T; only the ids and losses of the whole row are kept.
at::Tensor CarriedLosses(const model::LanguageModel& model, const data::Batch& batch,
                         int64_t piece);

}  // namespace halflife::eval
