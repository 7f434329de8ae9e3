// Which tokens a forward sees: B rows of T tokens, where each row may be a slice of a longer
// sequence (sequence parallelism, decode, split tests) and may hold several documents.
//
//   const auto slice =
//       SequenceSlice::Packed(batch.batch_size, batch.seq_len, batch.cu_seqlens, device);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/chunks/sequence_chunks.h"
#include "kernels/rotary/rotary.h"
#include "kernels/sequence/row_segment.h"
#include "model/position_tensors.h"

namespace halflife::model {

struct SequenceSlice {
  int64_t batch = 0;    // B
  int64_t seq_len = 0;  // T
  int64_t begin = 0;    // place of the first token within the whole row: dropout masks follow it
  // Position of each token in its document, counted from the document's (or the row's) true start,
  // not the slice's.
  at::Tensor positions;  // [B, T] int64
  // What embeddings and rotations are told in place of `positions`: training may show short rows
  // places of longer texts (data/row_positions.h). How many tokens are seen follows `positions`.
  at::Tensor told;  // [B, T] int64, or undefined: the same
  const at::Tensor& told_positions() const { return told.defined() ? told : positions; }
  // Number of the document within the row, ascending from 0. Undefined where no document starts
  // inside the slice (all tokens of a row continue one document): mixers then take the unmasked
  // path.
  at::Tensor documents;  // [B, T] int64, or undefined
  // True at tokens that start a document: state is reset before them. Undefined together with
  // `documents`.
  at::Tensor starts;  // [B, T] bool, or undefined
  // The same starts on the host, flat positions b T + t ascending; empty without boundaries.
  std::vector<int32_t> document_starts;
  // What linear attention cuts there, shared by all layers: their table goes to a device once a
  // batch. Null for a contiguous slice, of which each layer makes its own.
  std::shared_ptr<const kernels::SequenceChunks> chunks;
  // Rows of which other ranks hold the rest (model/sequence_parallel.h); null: nobody does, or what
  // is before the slice comes with a mixer's state.
  std::shared_ptr<const kernels::RowSegment> segment = {};
  // The tables of told_positions, for all layers; copies of a slice share them.
  std::shared_ptr<kernels::RotaryTables> rotary = std::make_shared<kernels::RotaryTables>();
  // Likewise what follows from `positions`.
  std::shared_ptr<PositionTensors> of_positions = std::make_shared<PositionTensors>();
  bool has_boundaries() const { return documents.defined(); }

  // Whole rows from position `offset` on, one document a row.
  static SequenceSlice Contiguous(int64_t batch, int64_t seq_len, int64_t offset,
                                  at::Device device);
  // Whole rows with documents: cu_seqlens over the flattened B*T tokens, every row start included
  // (data::Batch).
  static SequenceSlice Packed(int64_t batch, int64_t seq_len, std::span<const int32_t> cu_seqlens,
                              at::Device device);
  // One token a row, of which the device alone knows the place: positions [B, 1]. `begin` is -1.
  static SequenceSlice OfToken(const at::Tensor& positions);
  // Tokens [first, first + length) of every row, with positions and documents of the whole; there
  // may be none.
  SequenceSlice Narrow(int64_t first, int64_t length) const;
};

}  // namespace halflife::model
