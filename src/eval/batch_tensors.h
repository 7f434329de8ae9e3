// A data::Batch as the tensors a forward takes.
#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"
#include "model/objectives/objective.h"
#include "model/sequence_slice.h"

namespace halflife::eval {

struct BatchTensors {
  at::Tensor inputs;   // [B, T] int64
  at::Tensor targets;  // [B, T] int64, data::kNoTarget = none
  model::SequenceSlice slice;
};
// Labels the batch as the model's objective wants it, in place; `seed` is that of its random
// choices.
void ApplyObjective(const model::Objective& objective, uint64_t seed, data::Batch& batch);

BatchTensors ToTensors(const data::Batch& batch, at::Device device);

}  // namespace halflife::eval
