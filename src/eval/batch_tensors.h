// A data::Batch as the tensors a forward takes.
#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"
#include "model/objectives/objective.h"
#include "model/sequence_parallel.h"

namespace halflife::eval {

struct BatchTensors {
  at::Tensor inputs;   // [B, T] int64
  at::Tensor targets;  // [B, T] int64, data::kNoTarget = none
  model::SequenceSlice slice;
  int64_t num_targets = 0;
  at::Tensor samples;  // [B] int64, as kernels::SampleNumbers
};
// Labels the batch as the model's objective wants it, in place, but for rows of padding, which have
// no targets; `seed` is that of its random choices.
void ApplyObjective(const model::Objective& objective, uint64_t seed, data::Batch& batch);

BatchTensors ToTensors(const data::Batch& batch, at::Device device);
// This rank's slice of the rows.
BatchTensors ToTensors(const data::Batch& batch, at::Device device,
                       const model::SequenceParallel& parallel);

}  // namespace halflife::eval
