// Describes the tokens of a forward pass: B rows of T tokens. A row may be a slice of a longer
// sequence (sequence parallelism, decoding, tests that split rows) and may hold several documents.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "ops/rows/rotary.h"
#include "ops/sequence/row_segment.h"
#include "ops/sequence/sequence_chunks.h"

namespace halflife::model {

// A cache of tensors that depend only on a batch's positions. Each tensor is made when it is first
// requested, and all layers of a model share it. Thread-safe.
class PositionTensors {
 public:
  // Identifies a tensor and everything that it depends on in addition to the positions.
  struct Key {
    std::string_view name;  // Must have static storage.
    std::vector<double> values;
    bool operator==(const Key&) const = default;
  };
  // Returns make(), or the earlier result for the same `positions` and `key`. Position tensors are
  // compared by identity, not by value.
  at::Tensor Of(const at::Tensor& positions, const Key& key,
                const std::function<at::Tensor()>& make);

 private:
  struct Entry {
    at::Tensor positions;
    Key key;
    at::Tensor made;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

struct SequenceSlice {
  int64_t batch = 0;    // B
  int64_t seq_len = 0;  // T
  int64_t begin = 0;  // Index of the first token within the whole row; dropout masks depend on it.
  // Position of each token, counted from the start of its document (or row), not of the slice.
  at::Tensor positions;  // [B, T] int64
  // Overridden position ids for embeddings and rotations: training may assign positions of longer
  // texts to short rows (data/row_positions.h). The number of visible tokens still follows
  // `positions`.
  at::Tensor given_position_ids;  // [B, T] int64. Undefined: the same as `positions`.
  const at::Tensor& position_ids() const {
    return given_position_ids.defined() ? given_position_ids : positions;
  }
  // Number of the document within the row, ascending from 0. Undefined if no document starts inside
  // the slice (all tokens of a row continue one document). Mixers then take the unmasked path.
  at::Tensor documents;  // [B, T] int64, or undefined
  // True at tokens that start a document: the state is reset before them. Undefined together with
  // `documents`.
  at::Tensor starts;  // [B, T] bool, or undefined
  // The same starts on the host, as flat positions b T + t in ascending order. Empty without
  // boundaries.
  // A mixer whose launches depend on these returns MixerTraits::replays_documents = false.
  std::vector<int32_t> document_starts;
  // The chunks of linear attention for these boundaries. All layers share them, so that their table
  // is copied to a device once per batch. Null for a contiguous slice: each layer then makes its
  // own.
  std::shared_ptr<const ops::SequenceChunks> chunks;
  // Set if other ranks hold the rest of the rows (model/sequence_parallel.h). Null: the slice is
  // the whole row, or earlier tokens are given by a mixer's state.
  std::shared_ptr<const ops::RowSegment> segment = {};
  // Rotary tables of position_ids(), for all layers. Copies of a slice share them.
  std::shared_ptr<ops::RotaryTables> rotary = std::make_shared<ops::RotaryTables>();
  // Cached tensors that depend only on `positions`, shared in the same way.
  std::shared_ptr<PositionTensors> of_positions = std::make_shared<PositionTensors>();
  bool has_boundaries() const { return documents.defined(); }

  // Returns whole rows starting at position `offset`, with one document per row.
  static SequenceSlice Contiguous(int64_t batch, int64_t seq_len, int64_t offset,
                                  at::Device device);
  // Returns whole rows with documents. cu_seqlens refers to the flattened B*T tokens and includes
  // every row start (data::Batch).
  static SequenceSlice Packed(int64_t batch, int64_t seq_len, std::span<const int32_t> cu_seqlens,
                              at::Device device);
  // Returns one token per row whose position is known only on the device: positions [B, 1]. `begin`
  // is -1.
  static SequenceSlice OfToken(const at::Tensor& positions);
  // Returns tokens [first, first + length) of every row, with the positions and documents of the
  // whole. `length` may be 0.
  SequenceSlice Narrow(int64_t first, int64_t length) const;
};

}  // namespace halflife::model
