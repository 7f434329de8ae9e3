// The parameters of the CUDA kernels of decay attention, and the functions that launch them. There
// is one launcher per compiled instance (instances.inc). Its definition is in the kernel's .cuh and
// its instantiation in instances/. Internal header.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/decay_attention/cuda/blocks.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::decay {

// How the blocks of a kernel partition the problem: (sequence, segment, head, slice of K, slice of
// V), the last fastest. The sequences are those of a batch tile, and args.batch is its number of
// rows. Rows, sequences and all tensors are indexed from the first row of the whole batch; states
// of segments are indexed from the first sequence of the batch tile.
struct SegmentShape {
  int first_sequence, num_sequences;
  int num_segments;    // per sequence
  int num_key_slices;  // of K
  int num_slices;      // of V

  HL_EVERYWHERE int num_parts() const { return num_key_slices * num_slices; }
};
inline unsigned NumBlocks(const DecayAttentionArgs& args, const SegmentShape& shape) {
  return static_cast<unsigned>(int64_t{1} * shape.num_sequences * shape.num_segments *
                               args.num_heads * shape.num_parts());
}

// Fp32 factors and divisors [B, T, H] for the rows of dout. All gradients are linear in dout, so
// they are applied in fp32 instead of rounding a scaled dout. Null: 1.
struct RowScales {
  const float *factors, *divisors;
};

// The mean that has been subtracted from the values (mean_subtraction.h); it is also subtracted
// from states.
struct ValueMean {
  const float* mean;     // [B, Hv, V]; null: the values are unchanged
  const void* key_sums;  // checkpoints of z in the form of those of S: [2, slots, H, K] bf16
};

// Outputs of the normaliser in a forward: the sums of keys that divide the outputs (key_sums.cuh).
struct KeySums {
  bool wanted;           // false: outputs are not normalised
  bool divides;          // a block has all of K, so it divides before it writes
  float eps;             // added to every sum
  float* sums;           // [slices of K, B, T, H], including eps; null: not stored
  const float* initial;  // z [num_sequences, H, num_segments, K] before each segment; null: zero
  float* final;          // z [num_sequences, H, K]; null: not computed
  void* checkpoints;  // z [2, slots, H, K] bf16, stored with those of the state; null: not stored
};

// Upper bound of the chunks in one batch tile: all chunks minus the minimum that the other rows
// need. With several batch tiles, rows are sequences. The exact number depends on document
// boundaries, which only the device knows. Kernels with one block per tile of 16 tokens
// (channel_tile.cuh) use it for their grid.
inline int64_t MaxChunksInBatchTile(const DecayAttentionArgs& args, int num_sequences) {
  const int64_t least = (int64_t{args.seq_len} + kChunk - 1) / kChunk;
  return std::max<int64_t>(0, args.num_chunks - (args.num_sequences - num_sequences) * least);
}
inline int64_t MaxTilesInBatchTile(const DecayAttentionArgs& args, int num_sequences,
                                   int num_key_slices) {
  return MaxChunksInBatchTile(args, num_sequences) * args.num_heads * num_key_slices *
         (kChunk / kTile);
}
inline unsigned NumTiles(const DecayAttentionArgs& args, const SegmentShape& shape) {
  return static_cast<unsigned>(
      MaxTilesInBatchTile(args, shape.num_sequences, shape.num_key_slices));
}

// Returns the number of states, and of blocks, for kernels with one block per chunk and part of a
// state.
inline int64_t MaxStatesInBatchTile(const DecayAttentionArgs& args, int num_sequences,
                                    int num_parts) {
  return MaxChunksInBatchTile(args, num_sequences) * args.num_heads * num_parts;
}

// Per-channel decays: the operands of scans, which each tile computes independently.
struct ChannelOperandsParams {
  DecayAttentionArgs args;
  SegmentShape shape;
  RowScales row_scales;  // only in reverse
  void* operands;  // [tiles of the batch tile] of ChannelOperandBytes, or as in channel_chunks.h
};
// dq, dk and the decays' gradients, which each tile computes independently after a scan.
struct ChannelGradientsParams {
  DecayAttentionGradArgs grads;
  SegmentShape shape;
  RowScales row_scales;
  const float* products;  // [slices of V][tiles of the batch tile][ChannelProductElements]
  int64_t num_tiles;      // in the batch tile
  int num_slices;         // slices of V
  // The gradients themselves, or fp32 [B, T, H, ..] to be added to others and summed over heads
  // that share an operand; for key scales, [slices of K, B, T, H]. Absent: not computed.
  TensorView dq, dk, dlog_decay, dkey_scale;
  float* dlambda;  // [H, all tiles, K]
};

struct ChunkScanParams {
  DecayAttentionArgs args;
  SegmentShape shape;
  int checkpoint_every;
  bool splits_checkpoints;  // stores them as sums of two bf16; see mean_subtraction.h
  const void* operands;     // per-channel decays: the operands of the batch tile
  // [sequences of the batch tile, H, num_segments, K, V]: before each; null: initial_state
  const float* segment_states;
  // args.out, or fp32 [slices of K, B, T, H, V] to be summed over slices
  TensorView out;
  KeySums key_sums;
};

struct ReverseScanParams {
  DecayAttentionGradArgs grads;
  SegmentShape shape;
  int checkpoint_every;
  bool splits_checkpoints;  // as in the forward
  ValueMean value_mean;
  // [sequences of the batch tile, H, num_segments, K, V]: dL/d(state after each); null:
  // dfinal_state
  const float* segment_states;
  RowScales row_scales;
  void* group;  // [blocks, checkpoint_every (times 4 with per-channel decays), kK, kV] bf16
  // The gradients themselves, or fp32 [slices, B, T, H, ..] to be summed over slices and over heads
  // that share an operand. The slices are those of V for dq and dk, those of K for dv, and both for
  // a decay per token and for key scales. With wgmma, no gradient has slices of V. Absent: not
  // computed. The reverse scan of per-channel decays writes only dv.
  TensorView dq, dk, dv, dlog_decay, dkey_scale;
  // [slices, num_sequences, H, num_segments], starting at the batch tile's first sequence; slices
  // as for dlog_decay
  float* dlambda;
  // For the wgmma backward, which processes all chunks in parallel: S before and R after each
  // chunk, [chunks of the batch tile, H, slices of K and V, kK, kV] bf16. Null for the other
  // kernels. With it, dlambda is [slices of K, H, all chunks(, K with per-channel decays)].
  void *states, *adjoints;
  void* factors;  // ChunkFactors [chunks of the batch tile, H]
  // Per-channel decays: the operands of the batch tile's tiles (or chunks, with wgmma), and the
  // products from which the reverse scan's gradients are computed, [slices of
  // V][num_tiles][ChannelProductElements].
  const void* operands;
  float* products;
  int64_t num_tiles;
};

// Computes the state of each segment from a zero state; reverse: dL/dS from zero at the segment's
// end.
struct StateScanParams {
  DecayAttentionArgs args;
  TensorView dout;       // reverse only
  RowScales row_scales;  // reverse only
  const void* operands;  // per-channel decays: the operands of the batch tile, for this direction
  const void* factors;   // only with wgmma: as in ReverseScanParams
  SegmentShape shape;
  int checkpoint_every;
  bool reverse;
  float* states;  // [sequences of the batch tile, H, num_segments, K, V]
  // [sequences of the batch tile, H, num_segments(, K with per-channel decays)], multiplied by
  // `transition_unit`; null: not computed
  float* log_transition;
  float transition_unit;  // 1 for log2, ln 2 for a natural logarithm
};

// The decay factors of the chunks of a batch tile, for states with wgmma.
struct ChunkFactorsParams {
  DecayAttentionArgs args;
  SegmentShape shape;
  RowScales row_scales;
  void* factors;  // ChunkFactors [chunks of the batch tile, H]
};

// Converts the segments' own states into the states before (reverse: after) each, in place.
struct SegmentScanParams {
  int64_t num_states;  // number of sequences times H
  int num_segments;
  int state_elements;
  int transitions;  // per state: 1, or K with per-channel decays
  bool reverse;
  float* states;
  const float* log2_transition;
  const float* initial_state;  // null: zero
  float* final_state;          // null: not computed
  float* log_transition;       // [num_states(, K)], natural log; null: not computed
};
void LaunchSegmentScan(const SegmentScanParams& params, cudaStream_t stream);

// out[b, t, h', c] is the sum of partial[i, b, t, h, c] over the heads h that share h' and over
// slices i, in the order of heads, then of slices.
struct ReduceHeadsParams {
  const float* partial;  // [slices, B, T, H, dim]
  TensorView out;        // fp32 or bf16
  int num_slices, batch, seq_len, num_heads, num_out_heads, dim;
};
void LaunchReduceHeads(const ReduceHeadsParams& params, cudaStream_t stream);

// out[h', c] is the sum of partial[slice, sequence, h, segment, c] over sequences, segments, slices
// and the heads h that share h'. If num_chunks is not null, the segments are parts of chunks, and
// only those of the first *num_chunks chunks are added: a table may have unused entries.
struct ReduceConstantParams {
  const float* partial;
  float* out;
  int num_slices, num_sequences, num_segments, num_heads, num_out_heads, dim;
  const int32_t* num_chunks;  // in the device's memory
  int parts_of_chunk;
};
void LaunchReduceConstant(const ReduceConstantParams& params, cudaStream_t stream);

// The SIMT kernels are recurrent (per token): any kind of decay, with or without the normaliser, K
// <= kMaxHeadDimK, any V, fp32 arithmetic. A block owns kSimtColumns columns of V. The normaliser
// adds one column, which is all ones.
constexpr int kSimtColumns = 32;
enum class SimtMode : uint8_t {
  kOutput,   // out and final_state; each slice computes the denominator
  kStates,   // the states before each chunk
  kSummary,  // final_state from zero, and the sum of log_decay
};
struct SimtScanParams {
  DecayAttentionArgs args;
  SimtMode mode;
  float* states;          // [num_chunks, H, K, V (+ 1)]
  float* log_transition;  // [num_sequences, H, K or 1]; null: not computed
};
struct SimtReverseScanParams {
  DecayAttentionGradArgs grads;
  BatchTile batch_tile;
  bool summary;         // computes only dinitial_state, from zero
  const float* states;  // as in SimtScanParams
  const float* dnorm;   // [B, T, H] dL/d(sum of keys); only with the normaliser
  // Partial sums, fp32 [slices, B, T, H, ..]; dv is [B, T, H, V], as each slice has its own
  // columns. B is the number of rows of the batch tile (args.batch). The pointers are shifted so
  // that they can be indexed by rows of the whole batch.
  float *dq, *dk, *dv, *dlog_decay, *dkey_scale;
  float* dlambda;  // [num_sequences, H, slices, K or 1]
};
int SimtSlices(const DecayAttentionArgs& args, SimtMode mode);
template <typename T>
void LaunchSimtScan(const SimtScanParams& params, cudaStream_t stream);
template <typename T>
void LaunchSimtReverseScan(const SimtReverseScanParams& params, cudaStream_t stream);
// dnorm = -sum_v dout out / norm_denom
template <typename T>
void LaunchSimtNormGradient(const DecayAttentionGradArgs& grads, float* dnorm, cudaStream_t stream);

template <typename T>
void LaunchStep(const DecayAttentionStepArgs& args, cudaStream_t stream);

// The template arguments are the part of K and V that one block owns, and the number of bf16 terms
// of an operand (tiles.cuh): 1 for bf16 operands, 2 for fp32 operands. K and V are padded with
// zeros to slices of this size when tiles are loaded.
template <int kK, int kV, int kTerms = 1>
void LaunchChunkScan(const ChunkScanParams& params, cudaStream_t stream);
// On sm_90 only. Requires route.h's CanUseWgmma.
template <int kK, int kV>
void LaunchWarpgroupScan(const ChunkScanParams& params, cudaStream_t stream);
template <int kK, int kV, int kTerms = 1>
void LaunchChannelScan(const ChunkScanParams& params, cudaStream_t stream);
template <int kK, int kTerms = 1>
void LaunchChannelOperands(const ChannelOperandsParams& params, cudaStream_t stream);
// Per-channel decays in chunks of 64 tokens: the operands (channel_chunks.h); the scan, which runs
// on sm_90 only and requires route.h's CanUseWgmma; and the gradients, from the states of chunks.
template <int kK>
void LaunchChannelChunkOperands(const ChannelOperandsParams& params, cudaStream_t stream);
template <int kK, int kV>
void LaunchChannelWarpgroupScan(const ChunkScanParams& params, cudaStream_t stream);
template <int kK>
void LaunchChannelChunkGradients(const ReverseScanParams& params, cudaStream_t stream);
template <int kK, int kTerms = 1>
void LaunchChannelGradients(const ChannelGradientsParams& params, cudaStream_t stream);
template <int kK, int kV, int kTerms = 1>
void LaunchReverseScan(const ReverseScanParams& params, int shared_limit, cudaStream_t stream);
// States with wgmma, on sm_90 only: of each segment, or before and after each chunk. Both
// require the factors or, with per-channel decays, the operands of chunks. Requires route.h's
// CanUseWgmmaBackward.
void LaunchChunkFactors(const ChunkFactorsParams& params, cudaStream_t stream);
void LaunchSegmentStates(const StateScanParams& params, cudaStream_t stream);
// Launches a backward that computes all states and then the gradients, on sm_90 only. Requires
// route.h's CanUseWgmmaBackward.
void LaunchChunkStates(const ReverseScanParams& params, cudaStream_t stream);
template <int kK, int kV>
void LaunchWarpgroupGradients(const ReverseScanParams& params, cudaStream_t stream);
template <int kK, int kV, int kTerms = 1>
void LaunchChannelReverseScan(const ReverseScanParams& params, cudaStream_t stream);
template <int kK, int kV, int kTerms = 1>
void LaunchStateScan(const StateScanParams& params, cudaStream_t stream);
template <int kK, int kV, int kTerms = 1>
void LaunchChannelStateScan(const StateScanParams& params, cudaStream_t stream);

}  // namespace halflife::kernels::decay
