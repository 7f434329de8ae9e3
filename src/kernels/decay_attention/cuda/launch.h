// Inner header: what the dispatcher of decay attention hands to its CUDA kernels, and who launches
// them. One launcher per compiled instance (instances.inc); its definition is in the kernel's .cuh,
// its instantiation in instances/.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/decay_attention/cuda/blocks.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::decay {

// How a kernel's blocks share the problem: (sequence, segment, head, slice of K, slice of V), the
// last fastest. The sequences are a turn's, args.batch its rows; rows, sequences and all tensors
// count from the first of the whole batch, what segments hand over from the turn's first.
struct SegmentShape {
  int first_sequence, num_sequences;
  int num_segments;    // of each sequence
  int num_key_slices;  // of K
  int num_slices;      // of V

  HL_EVERYWHERE int num_parts() const { return num_key_slices * num_slices; }
};
inline unsigned NumBlocks(const DecayAttentionArgs& args, const SegmentShape& shape) {
  return static_cast<unsigned>(int64_t{1} * shape.num_sequences * shape.num_segments *
                               args.num_heads * shape.num_parts());
}

// Fp32 factors and divisors [B, T, H] of the rows of dout, which all gradients are linear in, where
// dout itself would round them; null: 1.
struct RowScales {
  const float *factors, *divisors;
};

// Where values are less their mean (centre.h): so are states before they are used.
struct Centre {
  const float* mean;     // [B, Hv, V]; null: values are as they were
  const void* key_sums;  // z beside the checkpoints of S, of the same form: [2, slots, H, K] bf16
};

// Of a normalised forward: the sums of keys that outputs are divided by (key_sums.cuh).
struct KeySums {
  bool wanted;           // else outputs are not normalised
  bool divides;          // a block has all of K, and divides before it writes
  float eps;             // is added to every sum
  float* sums;           // [slices of K, B, T, H], with eps; null: not kept
  const float* initial;  // z [num_sequences, H, num_segments, K] before each segment; null: zero
  float* final;          // z [num_sequences, H, K]; null: not wanted
  void* checkpoints;     // z [2, slots, H, K] bf16, beside those of the state; null: not kept
};

// Blocks of kernels that have one for each tile of 16 tokens: channel_tile.cuh. A turn has so many
// chunks at most: all but the least that other rows have, which are sequences where there are
// several turns. How many documents which row has only the device knows.
inline int64_t ChunksOfTurn(const DecayAttentionArgs& args, int num_sequences) {
  const int64_t least = (int64_t{args.seq_len} + kChunk - 1) / kChunk;
  return std::max<int64_t>(0, args.num_chunks - (args.num_sequences - num_sequences) * least);
}
inline int64_t TilesOfTurn(const DecayAttentionArgs& args, int num_sequences, int num_key_slices) {
  return ChunksOfTurn(args, num_sequences) * args.num_heads * num_key_slices * (kChunk / kTile);
}
inline unsigned NumTiles(const DecayAttentionArgs& args, const SegmentShape& shape) {
  return static_cast<unsigned>(TilesOfTurn(args, shape.num_sequences, shape.num_key_slices));
}

// Blocks, and states, of kernels that have one for each chunk of a turn and part of a state.
inline int64_t StatesOfTurn(const DecayAttentionArgs& args, int num_sequences, int num_parts) {
  return ChunksOfTurn(args, num_sequences) * args.num_heads * num_parts;
}

// Decays of channels: what scans multiply, of each tile by itself.
struct ChannelOperandsParams {
  DecayAttentionArgs args;
  SegmentShape shape;
  RowScales row_scales;  // in reverse
  void* operands;        // [tiles of the turn] of ChannelOperandBytes
};
// dq, dk and the decays' gradients, of each tile by itself, where a scan has been.
struct ChannelGradientsParams {
  DecayAttentionGradArgs grads;
  SegmentShape shape;
  RowScales row_scales;
  const float* products;  // [slices of V][tiles of the turn][ChannelProductElements]
  int64_t num_tiles;      // of the turn
  int num_slices;         // of V
  // The gradients themselves, or fp32 [B, T, H, ..] to be summed with others and over heads that
  // share; key scales [slices of K, B, T, H]. Absent: not wanted.
  TensorView dq, dk, dlog_decay, dkey_scale;
  float* dlambda;  // [H, all tiles, K]
};

struct ChunkScanParams {
  DecayAttentionArgs args;
  SegmentShape shape;
  int checkpoint_every;
  bool splits_checkpoints;  // keeps them as sums of two bf16: see centre.h
  const void* operands;     // of channels' decays, those of the turn's tiles
  // [a turn's sequences, H, num_segments, K, V]: before each; null: initial_state
  const float* segment_states;
  // args.out, or fp32 [slices of K, B, T, H, V] to be summed over them
  TensorView out;
  KeySums key_sums;
};

struct ReverseScanParams {
  DecayAttentionGradArgs grads;
  SegmentShape shape;
  int checkpoint_every;
  bool splits_checkpoints;  // as of the forward
  Centre centre;
  // [a turn's sequences, H, num_segments, K, V]: dL/d(state after each); null: dfinal_state
  const float* segment_states;
  RowScales row_scales;
  void* group;  // [blocks, checkpoint_every (times 4 with decays of channels), kK, kV] bf16
  // The gradients themselves, or fp32 [slices, B, T, H, ..] to be summed over slices and over heads
  // that share: slices of V for dq and dk, of K for dv, of both for a decay a token and for key
  // scales. Absent: not wanted. With decays of channels dv alone.
  TensorView dq, dk, dv, dlog_decay, dkey_scale;
  // [slices, num_sequences, H, num_segments] from the turn's first sequence on, slices as of
  // dlog_decay
  float* dlambda;
  // Of gradients of all chunks side by side, whose dlambda is [slices, H, all chunks]: S before and
  // R after each, [chunks of the turn, H, slices of K and V, kK, kV] bf16; else null.
  void *states, *adjoints;
  void* factors;  // ChunkFactors [chunks of the turn, H]
  // Of channels' decays: those of the turn's tiles, and what their gradients are made of, [slices
  // of V][num_tiles][ChannelProductElements].
  const void* operands;
  float* products;
  int64_t num_tiles;
};

// The state of each segment from a zero one; reverse: of dL/dS from zero at the segment's end.
struct StateScanParams {
  DecayAttentionArgs args;
  TensorView dout;       // reverse only
  RowScales row_scales;  // reverse only
  const void* operands;  // of channels' decays: those of the turn's tiles, of this direction
  SegmentShape shape;
  int checkpoint_every;
  bool reverse;
  float* states;  // [a turn's sequences, H, num_segments, K, V]
  // [a turn's sequences, H, num_segments(, K with decays of channels)], times `transition_unit`;
  // null: not wanted
  float* log_transition;
  float transition_unit;  // of log2: 1, or ln 2 for a natural logarithm
};

// Turns the segments' own states into the states before (reverse: after) each, in place.
struct SegmentScanParams {
  int64_t num_states;  // sequences H
  int num_segments;
  int state_elements;
  int transitions;  // of a state: 1, or K with decays of channels
  bool reverse;
  float* states;
  const float* log2_transition;
  const float* initial_state;  // null: zero
  float* final_state;          // null: not wanted
  float* log_transition;       // [num_states(, K)], natural log; null: not wanted
};
void LaunchSegmentScan(const SegmentScanParams& params, cudaStream_t stream);

// out[b, t, h', c] = sum over the heads h that share h', and over slices i, of
// partial[i, b, t, h, c], in the order of heads, then of slices.
struct ReduceHeadsParams {
  const float* partial;  // [slices, B, T, H, dim]
  TensorView out;        // fp32 or bf16
  int num_slices, batch, seq_len, num_heads, num_out_heads, dim;
};
void LaunchReduceHeads(const ReduceHeadsParams& params, cudaStream_t stream);

// out[h', c] = sum over sequences, segments, slices, and the heads h that share h' of
// partial[slice, sequence, h, segment, c].
struct ReduceConstantParams {
  const float* partial;
  float* out;
  int num_slices, num_sequences, num_segments, num_heads, num_out_heads, dim;
};
void LaunchReduceConstant(const ReduceConstantParams& params, cudaStream_t stream);

// The SIMT kernels: any kind, normaliser, K <= kMaxHeadDimK and V, fp32 arithmetic. A block owns
// kSimtColumns columns of V; with the normaliser a column of ones counts as one more.
constexpr int kSimtColumns = 32;
enum class SimtMode : uint8_t {
  kOutput,   // out and final_state; each slice computes the normaliser
  kStates,   // the states before each chunk
  kSummary,  // final_state from zero, and the sum of log_decay
};
struct SimtScanParams {
  DecayAttentionArgs args;
  SimtMode mode;
  float* states;          // [num_chunks, H, K, V (+ 1)]
  float* log_transition;  // [num_sequences, H, K or 1]; null: not wanted
};
struct SimtReverseScanParams {
  DecayAttentionGradArgs grads;
  Turn turn;
  bool summary;         // dinitial_state only, from zero
  const float* states;  // as above
  const float* dnorm;   // [B, T, H] dL/d(sum of keys); with the normaliser
  // Partial sums, fp32 [slices, B, T, H, ..] but for dv, [B, T, H, V], of which each slice has its
  // columns; B the turn's rows, as args.batch, in places where the batch's first would be.
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

// What a block of the instance owns of K and V, which are padded to slices of this size with zeros
// as tiles are loaded.
template <int kK, int kV>
void LaunchChunkScan(const ChunkScanParams& params, cudaStream_t stream);
// Of blocks kK x kWarpgroupColumns, on sm_90 alone, what route.h's WarpgroupsTake takes.
template <int kK>
void LaunchWarpgroupScan(const ChunkScanParams& params, cudaStream_t stream);
template <int kK, int kV>
void LaunchChannelScan(const ChunkScanParams& params, cudaStream_t stream);
template <int kK>
void LaunchChannelOperands(const ChannelOperandsParams& params, cudaStream_t stream);
template <int kK>
void LaunchChannelGradients(const ChannelGradientsParams& params, cudaStream_t stream);
template <int kK, int kV>
void LaunchReverseScan(const ReverseScanParams& params, int shared_limit, cudaStream_t stream);
// A backward of states and then gradients, on sm_90 alone, of what route.h's
// BackwardWarpgroupsTake takes.
void LaunchChunkStates(const ReverseScanParams& params, cudaStream_t stream);
template <int kK, int kV>
void LaunchWarpgroupGradients(const ReverseScanParams& params, cudaStream_t stream);
template <int kK, int kV>
void LaunchChannelReverseScan(const ReverseScanParams& params, cudaStream_t stream);
template <int kK, int kV>
void LaunchStateScan(const StateScanParams& params, cudaStream_t stream);
template <int kK, int kV>
void LaunchChannelStateScan(const StateScanParams& params, cudaStream_t stream);

}  // namespace halflife::kernels::decay
