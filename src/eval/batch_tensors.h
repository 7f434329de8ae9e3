// Converts a data::Batch to the tensors of a forward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"
#include "model/objectives/objective.h"
#include "model/sequence_parallel.h"

namespace halflife::eval {

struct BatchTensors {
  at::Tensor inputs;   // [B, T] int64
  at::Tensor targets;  // [B, T] int64; data::kNoTarget: no target.
  model::SequenceSlice slice;
  int64_t num_targets = 0;
  at::Tensor samples;  // [B] int64, see ops::SampleNumbers.
};
// Replaces the batch's inputs and labels in place by those of the model's objective. Rows of
// padding get no targets. `seed` determines the objective's random choices.
void ApplyObjective(const model::Objective& objective, uint64_t seed, data::Batch& batch);

BatchTensors ToTensors(const data::Batch& batch, at::Device device);
// Converts this rank's slice of the rows.
BatchTensors ToTensors(const data::Batch& batch, at::Device device,
                       const model::SequenceParallel& parallel);

}  // namespace halflife::eval
