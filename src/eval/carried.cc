#include "eval/carried.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "core/error.h"

namespace halflife::eval {
namespace {

// Returns [1, length] of `ids`, starting at index `begin`.
at::Tensor Ids(const std::vector<int32_t>& ids, int64_t begin, int64_t length, at::Device device) {
  return at::from_blob(const_cast<int32_t*>(ids.data()) + begin, {1, length}, at::kInt)
      .to(device, at::kLong);
}

}  // namespace

at::Tensor CarriedLosses(const model::LanguageModel& model, const data::Batch& batch,
                         int64_t piece) {
  HL_CHECK(piece > 0 && model.constant_state(),
           "carried losses need a state of constant size and pieces of at least 1 token; piece is ",
           piece);
  const at::Device device = model.device();
  at::Tensor losses =
      at::empty({1, batch.batch_size * batch.seq_len}, at::dtype(at::kFloat).device(device));
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const int64_t start = batch.cu_seqlens[document], end = batch.cu_seqlens[document + 1];
    model::ModelState state = model.EmptyState(1);
    for (int64_t begin = start; begin < end; begin += piece) {
      const int64_t length = std::min(piece, end - begin);
      const auto slice = model::SequenceSlice::Contiguous(1, length, begin - start, device);
      const at::Tensor tokens = Ids(batch.inputs, begin, length, device),
                       targets = Ids(batch.targets, begin, length, device);
      losses.narrow(1, begin, length)
          .copy_(model.TokenLosses(tokens, targets, {.slice = &slice}, &state));
    }
  }
  return losses.view({batch.batch_size, batch.seq_len});
}

}  // namespace halflife::eval
