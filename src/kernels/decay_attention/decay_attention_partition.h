// How a problem is shared out, by one rule on the CPU and on CUDA: the chunks of a segment, the
// slot of a checkpoint, the rows of a turn. C++17: CUDA sources include it.
//
//   const SegmentChunks chunks = ChunksOfSegment(begin[n], begin[n + 1], segment, num_segments,
//                                                plan.checkpoint_every);
//   for (int i = chunks.begin; i < chunks.end; ++i) Add(args.chunks[i]);
#pragma once

#include <cstdint>

#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/common/host_device.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels {

// Row of a contiguous [B, T, H].
HL_EVERYWHERE constexpr int64_t FlatRow(const DecayAttentionArgs& args, const ChunkEntry& chunk,
                                        int token, int head) {
  return (int64_t{1} * chunk.row * args.seq_len + chunk.token + token) * args.num_heads + head;
}

// Chunks [begin, end) of the table. Segments are of equal length but for the last ones, whole
// groups of the chunks between two checkpoints of a sequence, which has chunks [first, last).
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

// The slot of the state before chunk `chunk`, the first of a group, of a sequence whose chunks
// start at `first`. The slots of a sequence are consecutive, and those of neighbours stay apart
// without a table of their counts, as floor(a) + floor(b) <= floor(a + b).
HL_EVERYWHERE constexpr int64_t CheckpointSlot(int sequence, int first, int chunk,
                                               int checkpoint_every) {
  return int64_t{1} * first / checkpoint_every + sequence + (chunk - first) / checkpoint_every;
}
HL_EVERYWHERE constexpr int64_t NumCheckpointSlots(int num_chunks, int num_sequences,
                                                   int checkpoint_every) {
  return int64_t{1} * num_chunks / checkpoint_every + num_sequences;
}
// Elements of all states that a forward keeps, of `width` columns: from one to the rest of it that
// its rounding has lost, where that is kept too.
HL_EVERYWHERE constexpr int64_t CheckpointElements(const DecayAttentionArgs& args,
                                                   int checkpoint_every) {
  return NumCheckpointSlots(args.num_chunks, args.num_sequences, checkpoint_every) *
         args.num_heads * args.head_dim_k * args.head_dim_v;
}

// The rows of the batch that a turn has, and their sequences: of turns that differ by a row at
// most.
struct Turn {
  int first_row, num_rows;
  int first_sequence, num_sequences;
};
inline Turn TurnOf(const DecayAttentionArgs& args, int turn, int num_turns) {
  if (num_turns <= 1) return {0, args.batch, 0, args.num_sequences};  // packed sequences too
  const auto first = [&](int n) { return static_cast<int>(int64_t{args.batch} * n / num_turns); };
  const int begin = first(turn), count = first(turn + 1) - begin;
  return {begin, count, begin, count};  // a row is a sequence
}
// That of the most rows.
inline Turn LargestTurn(const DecayAttentionArgs& args, int num_turns) {
  if (num_turns <= 1) return TurnOf(args, 0, 1);
  const int rows = (args.batch + num_turns - 1) / num_turns;
  return {0, rows, 0, rows};
}

}  // namespace halflife::kernels
