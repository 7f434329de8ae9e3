// Rows that are longer than memory: in pieces, each of which goes on from the state that the one
// before it left. The losses are those of whole rows up to rounding.
//
//   const at::Tensor losses = CarriedLosses(model, batch, /*piece=*/2048);
#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"
#include "model/language_model.h"

namespace halflife::eval {

// -ln p of the batch's targets, [B, T] fp32, 0 where there is none. The model's state has constant
// size; documents of a row start from an empty one. What a forward takes follows from `piece`, not
// from T: of the row itself there are its ids and its losses.
at::Tensor CarriedLosses(const model::LanguageModel& model, const data::Batch& batch,
                         int64_t piece);

}  // namespace halflife::eval
