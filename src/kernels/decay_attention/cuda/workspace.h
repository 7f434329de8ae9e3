// Where the parts of the CUDA kernels' workspace lie: offsets in bytes, each a multiple of 256. B
// and sequences are those of the largest turn (partition.h), whose place the next turn takes, but
// where a part is said to be of all. Host code.
//
//   const cuda::BackwardLayout layout = cuda::MakeBackwardLayout(args, plan);
//   float* const dq = cuda::At<float>(args.workspace, layout.dq);
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::cuda {

// What the segments of a sequence hand to each other, [sequences, H, num_segments] of each; nothing
// where one does.
struct SegmentLayout {
  size_t states = 0;  // [.., K, V] fp32: first the segment's own sum, then the state it starts from
  size_t log_transition = 0;  // [..(, K with decays of channels)]
};
// Of centred values and what becomes of their states (centre.h).
struct CentreLayout {
  size_t sums = 0;            // fp32 [NumMeanPieces, B, Hv, V]
  size_t mean = 0;            // fp32 [B, Hv, V]
  size_t values = 0;          // bf16 [B, T, Hv, V]
  size_t dfinal_norm = 0;     // fp32 [sequences, H, K]
  size_t dinitial_state = 0;  // fp32 [sequences, H, K, V]: where the caller wants none
};
// Of the normaliser, whose sums of keys are the state of a column of ones, where a scan takes that.
struct NormaliserLayout {
  size_t one = 0;  // that column: one bf16
  // fp32 [slices of K, B, T, H]: forward, of several slices, the sums of keys; backward, dL/d(ones)
  size_t sums = 0;
  SegmentLayout segments;  // forward, of that state
  size_t factor = 0;       // backward, fp32 [B, T, H]: of the ones, as rows of dout
  CentreLayout centre;
};
struct ForwardLayout {
  SegmentLayout segments;
  size_t operands = 0;  // decays of channels, of the turn's tiles
  size_t out = 0;  // fp32 sums over slices of K, of which there are several: [slices, B, T, H, V]
  NormaliserLayout normaliser;
  size_t bytes = 0;
};
// How many slices of a gradient are to be summed; 1: it is written where it is wanted, if no heads
// share it.
struct GradientSlices {
  int keys = 1;    // of dq and dk, which each slice of V has for all of its channels; with decays
                   // of channels, where one kernel has all of V, each scan
  int values = 1;  // of dv, which each slice of K has
  int tokens = 1;  // of what is one number a token and head
  int decays = 1;  // of dlog_decay
};
struct BackwardLayout {
  SegmentLayout segments;
  // Decays of channels: of the turn's tiles, and what scans make of them, [slices of V] of each.
  size_t operands = 0, products = 0;
  // bf16 states: within a group of chunks, one set a block, as fragments; by warpgroups those of
  // all chunks of the turn, S and R.
  size_t group = 0, states = 0, adjoints = 0;
  size_t factors = 0;  // of the turn's chunks
  // fp32 gradients in slices, or of shared heads, one per head of the output: summed in the order
  // of the heads, of a head in the order of the slices.
  GradientSlices slices;
  size_t dq = 0, dk = 0;  // [slices, B, T, H, K]
  size_t dv = 0;          // [slices, B, T, H, V]
  size_t dlog_decay = 0;  // [slices, B, T, H(, K)]
  size_t dlambda = 0;     // of a constant decay: [slices] of DecaySums
  size_t dkey_scale = 0;  // [slices, B, T, H]
  NormaliserLayout normaliser;
  // Of the SIMT kernels, whose dlambda is [all sequences, H, slices(, K)].
  size_t simt_states = 0;  // of all rows: [num_chunks, H, K, V (+ 1)]
  size_t dnorm = 0;        // likewise, [B, T, H]
  size_t bytes = 0;
};
// What a constant decay's gradient is the sum of, of one slice: [num_sequences, H, pieces, width].
// Segments of sequences have a sum each, or chunks of the batch, or, with decays of channels,
// tiles.
struct DecaySums {
  int num_sequences, pieces, width;

  size_t count(int num_heads) const {
    return size_t{1} * num_sequences * num_heads * pieces * width;
  }
};
DecaySums DecaySumsOf(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
int NumMeanPieces(const DecayAttentionArgs& args);  // sums of values that a mean is the sum of
ForwardLayout MakeForwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
BackwardLayout MakeBackwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
// What Summarise and BackwardSummarise use of them, alone.
ForwardLayout MakeSummaryLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
BackwardLayout MakeReverseSummaryLayout(const DecayAttentionArgs& args,
                                        const DecayAttentionPlan& plan);

size_t ForwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
// Of a plan by warpgroups, also what the backward takes that goes by warps in its place.
size_t BackwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
// bf16 [num_chunks / every + num_sequences, H, K, V]; with the normaliser two terms of that, then
// the same of its one column. Nothing on the SIMT route, which recomputes.
size_t CheckpointBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
// Where the column's begin.
size_t NormCheckpoints(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

template <typename T>
T* At(void* workspace, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
}

// Of a region with a turn's rows, or its sequences, where the batch's first would be, which is what
// kernels count from; `before` elements ahead of it.
template <typename T>
T* BeforeTurn(void* workspace, size_t offset, int64_t before) {
  const int64_t first = static_cast<int64_t>(offset) - before * static_cast<int64_t>(sizeof(T));
  return reinterpret_cast<T*>(static_cast<char*>(workspace) + first);
}

}  // namespace halflife::kernels::cuda
