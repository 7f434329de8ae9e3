#include "eval/batch_tensors.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <vector>

#include "ops/rows/dropout.h"
#include "ops/torch/host_transfer.h"

namespace halflife::eval {
namespace {

// Returns the ids as [B, T] int64 on the CPU.
at::Tensor Ids(const std::vector<int32_t>& ids, const data::Batch& batch) {
  // from_blob needs a mutable pointer, but nothing writes to it: .to(kLong) makes a copy.
  return at::from_blob(const_cast<int32_t*>(ids.data()), {batch.batch_size, batch.seq_len},
                       at::kInt)
      .to(at::kLong);
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
    if (batch.samples[row] != data::kNoSample) continue;  // Padding never has targets.
    std::fill_n(batch.targets.begin() + row * batch.seq_len, batch.seq_len, data::kNoTarget);
  }
  batch.num_targets =
      std::ranges::count_if(batch.targets, [](int32_t label) { return label >= 0; });
}

BatchTensors ToTensors(const data::Batch& batch, at::Device device) {
  return {ops::Upload(Ids(batch.inputs, batch), device),
          ops::Upload(Ids(batch.targets, batch), device),
          model::SequenceSlice::Packed(batch.batch_size, batch.seq_len, batch.cu_seqlens, device),
          batch.num_targets, ops::SampleNumbers(batch.samples, device)};
}

BatchTensors ToTensors(const data::Batch& batch, at::Device device,
                       const model::SequenceParallel& parallel) {
  const at::Tensor targets = parallel.TokensOf(Ids(batch.targets, batch));
  const auto* const target = targets.const_data_ptr<int64_t>();
  const auto slice =
      model::SequenceSlice::Packed(batch.batch_size, batch.seq_len, batch.cu_seqlens, device);
  return {ops::Upload(parallel.TokensOf(Ids(batch.inputs, batch)), device),
          ops::Upload(targets, device), parallel.SliceOf(slice),
          std::count_if(target, target + targets.numel(), [](int64_t id) { return id >= 0; }),
          ops::SampleNumbers(batch.samples, device)};
}

}  // namespace halflife::eval
