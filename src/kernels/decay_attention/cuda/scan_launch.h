// One scan of decay attention on tensor cores, as launched by the host: over the slices of a head
// and, if sequences are cut into segments, over these first. A problem needs one or two scans
// (decay_attention.cu). Internal header.
#pragma once

#include <algorithm>

#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::cuda {

// Throws Error (exit 2) if the plan's blocks are not compiled or exceed the device's shared memory.
void CheckBlocks(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

inline bool IsNormalised(const DecayAttentionArgs& args) {
  return args.norm_kind == NormKind::kSumOfKeys;
}

// A scan over the sequences of a batch tile, and over their segments: either of the problem itself,
// or of the normaliser (v replaced by a column of ones).
struct Scan {
  DecayAttentionArgs args;  // without the normaliser; batch is that of the batch tile
  BatchTile batch_tile;
  DecayBlock block;
  int num_segments, checkpoint_every;
  bool splits_checkpoints;
  bool warpgroups, backward_warpgroups;
  bool state_warpgroups;        // the states of segments with wgmma
  decay::RowScales row_scales;  // only in reverse: for the rows of dout
  decay::ValueMean value_mean;  // only in reverse
  void* operands = nullptr;     // per-channel decays: buffer for the operands of the batch tile

  decay::SegmentShape Shape() const {
    const Slices slices = SlicesOf(args, block);
    return {batch_tile.first_sequence, batch_tile.num_sequences, num_segments, slices.keys,
            slices.values};
  }
  bool per_channel() const { return IsPerChannel(args.decay_kind); }
  // Per-channel decays: whether the operands are those of chunks (channel_chunks.h), not of tiles.
  bool by_chunks() const { return per_channel() && warpgroups; }
  // Returns the same scan with operands of tiles, which the summaries of segments use.
  Scan ByTiles() const {
    Scan scan = *this;
    if (per_channel()) scan.warpgroups = false;
    return scan;
  }
};
// The plan of one direction, and the batch tile.
struct Direction {
  DecayBlock block;
  int num_segments;
  BatchTile batch_tile;
};
inline Direction ForwardDirection(const DecayAttentionPlan& plan, const BatchTile& batch_tile) {
  return {plan.forward, std::max(plan.num_segments, 1), batch_tile};
}
inline Direction BackwardDirection(const DecayAttentionPlan& plan, const BatchTile& batch_tile) {
  return {plan.backward, std::max(plan.backward_segments, 1), batch_tile};
}

Scan MakeScan(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
              const Direction& direction);
// Returns the scan for the normaliser state z (v replaced by a column of ones). Its block has the
// same width in K, so that its slices of K are the problem's.
Scan MakeNormaliserScan(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                        const Direction& direction, const NormaliserLayout& layout);

// Returns a tensor or a problem restricted to the rows (and sequences) of a batch tile, for kernels
// that index from the tile's first row. A scan uses the tensors of the whole batch, because its
// chunks contain the batch's row numbers.
TensorView BatchTileRows(TensorView view, const BatchTile& batch_tile);
DecayAttentionArgs BatchTileProblem(const DecayAttentionArgs& args, const BatchTile& batch_tile);

// Returns a view of [slices, B, T, H, dim] fp32 in the workspace, from slice `first` on, where B
// counts the rows of the batch tile. The data pointer is shifted so that the view is indexed by
// rows of the whole batch.
TensorView Partial(const DecayAttentionArgs& args, const BatchTile& batch_tile, size_t offset,
                   int dim, int first = 0);

// Per-channel decays: computes the operands of one direction's scans. Call it before them.
void MakeOperands(const Scan& scan, cudaStream_t stream);

// States with wgmma: computes the decay factors of the batch tile's chunks. Call it before them.
void MakeFactors(const Scan& scan, const SegmentLayout& layout, cudaStream_t stream);

// Computes the state contract of a segment, which its rank sends to other ranks.
void Summarise(const Scan& scan, const SegmentLayout& layout, const TensorView* dout, void* state,
               float* log_transition, cudaStream_t stream);

// Sets up the normaliser's outputs of a batch tile's forward scan. With several segments, launches
// the scans that compute z before each segment, from the same operands.
decay::KeySums PrepareKeySums(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                              const ForwardLayout& layout, const BatchTile& batch_tile,
                              cudaStream_t stream);
// `out`: args.out, or fp32 [slices of K, B, T, H, V].
void RunForward(const Scan& scan, const SegmentLayout& segments, const TensorView& out,
                const decay::KeySums& key_sums, cudaStream_t stream);

// The outputs of one scan's gradients.
struct GradientOutputs {
  TensorView dq, dk, dv, dlog_decay, dkey_scale;
  float* dlambda;
};
// Returns the outputs that the layout assigns to a scan. `first` is the index of its first slice of
// V; slices that also depend on K start at first * (slices of K).
GradientOutputs MakeGradientOutputs(const DecayAttentionGradArgs& grads,
                                    const DecayAttentionPlan& plan, const BackwardLayout& layout,
                                    const BatchTile& batch_tile, int first);
// `grads` contains the tensors that the scan reads in addition to its args, and the states'
// gradients.
void RunBackward(const Scan& scan, const DecayAttentionGradArgs& grads,
                 const BackwardLayout& layout, const GradientOutputs& outputs, cudaStream_t stream);

// Returns a backward's scan over V. With the normaliser, the rows of dout are divided by their
// denominators.
Scan MakeReverseScan(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                     const BatchTile& batch_tile);
// The backward scan for the normaliser z (v replaced by a column of ones). Its upstream gradient is
// factor[b, t, h] / norm_denom[b, t, h]; `factor` must be filled, for the rows of the batch tile,
// before the scan is launched.
struct ReverseNormaliserScan {
  Scan scan;
  TensorView dout;
  float* factor;
};
ReverseNormaliserScan MakeReverseNormaliserScan(const DecayAttentionArgs& args,
                                                const DecayAttentionPlan& plan,
                                                const NormaliserLayout& layout,
                                                const BatchTile& batch_tile, cudaStream_t stream);

}  // namespace halflife::kernels::cuda
