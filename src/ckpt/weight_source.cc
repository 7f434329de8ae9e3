#include "ckpt/weight_source.h"

namespace halflife::ckpt {

StepWeights::StepWeights(StepReader reader) : reader_(std::move(reader)) {
  for (const TensorInfo& tensor : reader_.tensors())
    weights_.push_back({tensor.name, tensor.shape});
}

}  // namespace halflife::ckpt
