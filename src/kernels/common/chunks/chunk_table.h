// Divides the tokens of a batch into chunks that never span two documents. Runs on the host, once
// per batch.
//
//   const ChunkTable table = MakeChunkTable(
//       {.batch = B, .seq_len = T, .chunk_size = 64, .document_starts = cu_seqlens});
//   args.chunks = table.chunks.data(); ...
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/common/chunks/chunk_entry.h"

namespace halflife::kernels {

struct ChunkTableConfig {
  int64_t batch = 0, seq_len = 0;
  // At least 1. MakeSequenceChunks() accepts 0: the plan then chooses the size for its device.
  int64_t chunk_size = 0;
  // Positions b T + t at which the state restarts from zero, in ascending order. Duplicates and B T
  // itself are ignored. A row whose first token is not listed continues from the row's initial
  // state.
  std::span<const int32_t> document_starts = {};
  // If not empty, the batch must be 1, and [0, ..., T] delimits the sequences, each with its own
  // initial and final state. Values must not decrease; equal neighbours make a sequence without
  // tokens.
  std::span<const int32_t> cu_seqlens = {};
  // The number of entries of the table; 0: one for each chunk. The entries that are not needed
  // follow the chunks, have length 0 and belong to no sequence. Tables of one capacity can be read
  // by the same recorded launches.
  int64_t capacity = 0;
};
struct ChunkTable {
  std::vector<ChunkEntry> chunks;
  std::vector<int32_t> sequence_begin;
};
// The number of chunks is at most this, for rows with this many documents in all, of which one
// starts (or continues) at the start of each row.
constexpr int64_t MaxNumChunks(int64_t batch, int64_t seq_len, int64_t chunk_size,
                               int64_t num_documents) {
  return batch * ((seq_len + chunk_size - 1) / chunk_size) + num_documents - batch;
}
// Throws an error (exit 3), with the index, for limits that are out of order or out of range.
ChunkTable MakeChunkTable(const ChunkTableConfig& config);

}  // namespace halflife::kernels
