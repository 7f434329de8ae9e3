// How a problem is partitioned, by the same rules on the CPU and on CUDA: the chunks of a segment,
// the slot of a checkpoint, the rows of a batch tile. C++17: CUDA sources include this header.
#pragma once

#include <cstdint>

#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/common/host_device.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels {

// Returns the row index in a contiguous [B, T, H].
HL_EVERYWHERE constexpr int64_t FlatRow(const DecayAttentionArgs& args, const ChunkEntry& chunk,
                                        int token, int head) {
  return (int64_t{1} * chunk.row * args.seq_len + chunk.token + token) * args.num_heads + head;
}

// Chunks [begin, end) of the table, for one segment of a sequence with chunks [first, last). All
// segments except the last ones have equal lengths, in multiples of checkpoint_every.
struct SegmentChunks {
  int begin, end;
};
HL_EVERYWHERE constexpr SegmentChunks ChunksOfSegment(int first, int last, int segment,
                                                      int num_segments, int checkpoint_every) {
  const int groups = (last - first + checkpoint_every - 1) / checkpoint_every;
  const int length = (groups + num_segments - 1) / num_segments * checkpoint_every;
  const int begin = first + segment * length < last ? first + segment * length : last;
  return {begin, begin + length < last ? begin + length : last};
}

// Returns the slot of the state before `chunk`, which must be the first chunk of a group, in a
// sequence whose chunks start at `first`. The slots of a sequence are consecutive. Slots of
// neighbouring sequences never overlap, without a table of their counts, because floor(a) +
// floor(b) <= floor(a + b).
HL_EVERYWHERE constexpr int64_t CheckpointSlot(int sequence, int first, int chunk,
                                               int checkpoint_every) {
  return int64_t{1} * first / checkpoint_every + sequence + (chunk - first) / checkpoint_every;
}
HL_EVERYWHERE constexpr int64_t NumCheckpointSlots(int num_chunks, int num_sequences,
                                                   int checkpoint_every) {
  return int64_t{1} * num_chunks / checkpoint_every + num_sequences;
}
// Returns the number of elements in all saved states of a forward. If the forward also saves the
// rounding remainders of the states, this is the distance from a state to its remainder.
HL_EVERYWHERE constexpr int64_t CheckpointElements(const DecayAttentionArgs& args,
                                                   int checkpoint_every) {
  return NumCheckpointSlots(args.num_chunks, args.num_sequences, checkpoint_every) *
         args.num_heads * args.head_dim_k * args.head_dim_v;
}

// A batch tile: consecutive rows of the batch and their sequences. Sizes of tiles differ by at most
// one row.
struct BatchTile {
  int first_row, num_rows;
  int first_sequence, num_sequences;
};
inline BatchTile MakeBatchTile(const DecayAttentionArgs& args, int index, int num_batch_tiles) {
  if (num_batch_tiles <= 1)
    return {0, args.batch, 0, args.num_sequences};  // also for packed sequences
  const auto first = [&](int n) {
    return static_cast<int>(int64_t{args.batch} * n / num_batch_tiles);
  };
  const int begin = first(index), count = first(index + 1) - begin;
  return {begin, count, begin, count};  // each row is a sequence
}
// Returns the size of the largest batch tile.
inline BatchTile LargestBatchTile(const DecayAttentionArgs& args, int num_batch_tiles) {
  if (num_batch_tiles <= 1) return MakeBatchTile(args, 0, 1);
  const int rows = (args.batch + num_batch_tiles - 1) / num_batch_tiles;
  return {0, rows, 0, rows};
}

}  // namespace halflife::kernels
