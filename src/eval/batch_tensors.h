// A data::Batch as the tensors a forward takes.
#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"
#include "model/sequence_slice.h"

namespace halflife::eval {

struct BatchTensors {
  at::Tensor inputs;   // [B, T] int64
  at::Tensor targets;  // [B, T] int64, data::kNoTarget = none
  model::SequenceSlice slice;
};
BatchTensors ToTensors(const data::Batch& batch, at::Device device);

}  // namespace halflife::eval
