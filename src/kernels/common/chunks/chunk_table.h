// Cuts the tokens of a batch into chunks that never span two documents, on the host, once per
// batch.
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
  // at least 1; for MakeSequenceChunks 0 is the plan's choice for its device
  int64_t chunk_size = 0;
  // Where state restarts from zero: flat positions b T + t, ascending; duplicates and B T itself
  // are ignored. A row whose first token is not listed goes on from the row's initial state.
  std::span<const int32_t> document_starts = {};
  // Not empty: batch is 1 and [0, ..., T] delimits the sequences, each with its own initial and
  // final state. Equal neighbours are sequences of no token. Must not decrease.
  std::span<const int32_t> cu_seqlens = {};
};
struct ChunkTable {
  std::vector<ChunkEntry> chunks;
  std::vector<int32_t> sequence_begin;
};
// Throws Error (exit 3) for limits that are out of order or out of range, naming the index.
ChunkTable MakeChunkTable(const ChunkTableConfig& config);

}  // namespace halflife::kernels
