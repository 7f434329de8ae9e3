#include "model/sequence_slice.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include "core/error.h"
#include "ops/torch/host_transfer.h"

namespace halflife::model {

SequenceSlice SequenceSlice::Contiguous(int64_t batch, int64_t seq_len, int64_t offset,
                                        at::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  SequenceSlice slice = {.batch = batch, .seq_len = seq_len, .begin = offset};
  slice.positions =
      at::arange(offset, offset + seq_len, options).unsqueeze(0).expand({batch, seq_len});
  return slice;
}

SequenceSlice SequenceSlice::OfToken(const at::Tensor& positions) {
  return {.batch = positions.size(0), .seq_len = 1, .begin = -1, .positions = positions};
}

SequenceSlice SequenceSlice::Packed(int64_t batch, int64_t seq_len,
                                    std::span<const int32_t> cu_seqlens, at::Device device) {
  const int64_t num_tokens = batch * seq_len;
  HL_CHECK(cu_seqlens.size() >= 2 && cu_seqlens.front() == 0 && cu_seqlens.back() == num_tokens,
           "cu_seqlens must run from 0 to ", num_tokens);
  const auto num_pieces = static_cast<int64_t>(cu_seqlens.size()) - 1;
  bool one_each = num_pieces == batch;  // One document per row.
  for (int64_t row = 0; one_each && row < batch; ++row) one_each = cu_seqlens[row] == row * seq_len;
  if (one_each) {
    SequenceSlice rows = Contiguous(batch, seq_len, 0, device);
    rows.chunks = ops::MakeSequenceChunks({.batch = batch, .seq_len = seq_len}, device);
    return rows;
  }

  at::Tensor positions = at::empty({batch, seq_len}, at::kLong);
  at::Tensor documents = at::empty({batch, seq_len}, at::kLong);
  at::Tensor starts = at::empty({batch, seq_len}, at::kBool);
  auto* position = positions.mutable_data_ptr<int64_t>();
  auto* document = documents.mutable_data_ptr<int64_t>();
  auto* start = starts.mutable_data_ptr<bool>();
  int64_t number = 0;
  for (int64_t piece = 0; piece < num_pieces; ++piece) {
    const int64_t first = cu_seqlens[piece], last = cu_seqlens[piece + 1];
    HL_CHECK(first < last && (last - 1) / seq_len == first / seq_len, "document piece of tokens [",
             first, ", ", last, ") is empty or crosses a row of ", seq_len);
    number = first % seq_len == 0 ? 0 : number + 1;
    for (int64_t token = first; token < last; ++token) {
      position[token] = token - first;
      document[token] = number;
      start[token] = token == first;
    }
  }
  SequenceSlice slice = {.batch = batch,
                         .seq_len = seq_len,
                         .positions = ops::Upload(positions, device),
                         .documents = ops::Upload(documents, device),
                         .starts = ops::Upload(starts, device),
                         .document_starts = {cu_seqlens.begin(), cu_seqlens.end() - 1}};
  slice.chunks = ops::MakeSequenceChunks(
      {.batch = batch, .seq_len = seq_len, .document_starts = slice.document_starts}, device);
  return slice;
}

SequenceSlice SequenceSlice::Narrow(int64_t first, int64_t length) const {
  HL_CHECK(0 <= first && 0 <= length && first + length <= seq_len, "tokens [", first, ", ",
           first + length, ") are outside the slice, whose length is ", seq_len);
  SequenceSlice part = {.batch = batch, .seq_len = length, .begin = begin + first};
  part.positions = positions.narrow(1, first, length);
  if (given_position_ids.defined())
    part.given_position_ids = given_position_ids.narrow(1, first, length);
  if (has_boundaries()) {
    part.documents = documents.narrow(1, first, length);
    part.starts = starts.narrow(1, first, length);
    for (const int32_t start : document_starts) {
      const int64_t row = start / seq_len, token = start % seq_len - first;
      if (token >= 0 && token < length)
        part.document_starts.push_back(static_cast<int32_t>(row * length + token));
    }
  }
  if (chunks != nullptr)
    part.chunks = ops::MakeSequenceChunks(
        {.batch = batch, .seq_len = length, .document_starts = part.document_starts},
        positions.device());
  return part;
}

at::Tensor PositionTensors::Of(const at::Tensor& positions, const Key& key,
                               const std::function<at::Tensor()>& make) {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_)
    if (entry.positions.is_same(positions) && entry.key == key) return entry.made;
  return entries_.emplace_back(positions, key, make()).made;
}

}  // namespace halflife::model
