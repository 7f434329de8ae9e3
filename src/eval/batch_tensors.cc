#include "eval/batch_tensors.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

namespace halflife::eval {
namespace {

at::Tensor Ids(const std::vector<int32_t>& ids, const data::Batch& batch, at::Device device) {
  // from_blob wants a mutable pointer; .to(kLong) copies before anything could write
  const at::Tensor host =
      at::from_blob(const_cast<int32_t*>(ids.data()), {batch.batch_size, batch.seq_len}, at::kInt);
  return host.to(device, at::kLong);
}

}  // namespace

void ApplyObjective(const model::Objective& objective, uint64_t seed, data::Batch& batch) {
  objective.Label({.batch = batch.batch_size,
                   .seq_len = batch.seq_len,
                   .inputs = batch.inputs,
                   .labels = batch.targets,
                   .samples = batch.samples,
                   .seed = seed});
  for (int64_t row = 0; row < batch.batch_size; ++row) {
    if (batch.samples[row] != data::kNoSample) continue;  // no objective asks for padding
    std::fill_n(batch.targets.begin() + row * batch.seq_len, batch.seq_len, data::kNoTarget);
  }
  batch.num_targets =
      std::ranges::count_if(batch.targets, [](int32_t label) { return label >= 0; });
}

BatchTensors ToTensors(const data::Batch& batch, at::Device device) {
  return {Ids(batch.inputs, batch, device), Ids(batch.targets, batch, device),
          model::SequenceSlice::Packed(batch.batch_size, batch.seq_len, batch.cu_seqlens, device),
          batch.num_targets};
}

BatchTensors ToTensors(const data::Batch& batch, at::Device device,
                       const model::SequenceParallel& parallel) {
  const at::Tensor targets = parallel.TokensOf(Ids(batch.targets, batch, at::kCPU));
  const auto slice =
      model::SequenceSlice::Packed(batch.batch_size, batch.seq_len, batch.cu_seqlens, device);
  return {parallel.TokensOf(Ids(batch.inputs, batch, at::kCPU)).to(device), targets.to(device),
          parallel.SliceOf(slice), targets.ge(0).sum().item<int64_t>()};
}

}  // namespace halflife::eval
