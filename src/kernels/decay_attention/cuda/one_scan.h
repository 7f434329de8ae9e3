// Inner header: one scan of decay attention on tensor cores, as a host launches it: over the slices
// of a head, and where a sequence is cut into segments over these first. A problem is one or two of
// them (scans.cu).
//
//   const Scan scan = ScanOf(args, plan, ForwardOf(plan, TurnOf(args, 0, plan.forward_turns)));
//   RunForward(scan, layout.segments, args.out, /*key_sums=*/{}, stream);
#pragma once

#include <algorithm>

#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::cuda {

inline bool IsNormalised(const DecayAttentionArgs& args) {
  return args.norm_kind == NormKind::kSumOfKeys;
}

// One scan of a turn's sequences and those of their segments: of the problem itself, or of a column
// of ones.
struct Scan {
  DecayAttentionArgs args;  // without the normaliser; of the turn's rows
  Turn turn;
  DecayBlock block;
  int num_segments, checkpoint_every;
  bool splits_checkpoints;
  bool warpgroups, backward_warpgroups;
  decay::RowScales row_scales;  // in reverse: of dout
  decay::Centre centre;         // in reverse
  void* operands = nullptr;     // of decays of channels: room for those of the turn's tiles

  decay::SegmentShape Shape() const {
    const Slices slices = SlicesOf(args, block);
    return {turn.first_sequence, turn.num_sequences, num_segments, slices.keys, slices.values};
  }
  bool per_channel() const { return IsPerChannel(args.decay_kind); }
};
// What a plan says of one direction, and the turn.
struct Direction {
  DecayBlock block;
  int num_segments;
  Turn turn;
};
inline Direction ForwardOf(const DecayAttentionPlan& plan, const Turn& turn) {
  return {plan.forward, std::max(plan.num_segments, 1), turn};
}
inline Direction BackwardOf(const DecayAttentionPlan& plan, const Turn& turn) {
  return {plan.backward, std::max(plan.backward_segments, 1), turn};
}

Scan ScanOf(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
            const Direction& direction);
// Of the sums of keys: v is one column of ones, the state is the normaliser's. The block is as wide
// in K, so that its slices are the problem's.
Scan ScanOfOnes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                const Direction& direction, const NormaliserLayout& layout);

// A turn's rows of a tensor, and of a problem with all that has rows or their sequences: for
// kernels that count from the turn's first. A scan, whose chunks name the batch's rows, has the
// batch's tensors.
TensorView RowsOfTurn(TensorView view, const Turn& turn);
DecayAttentionArgs ProblemOfTurn(const DecayAttentionArgs& args, const Turn& turn);

// Where slices from `first` on of [slices, B, T, H, dim] fp32 in the workspace, of the turn's rows,
// have the batch's first row.
TensorView Partial(const DecayAttentionArgs& args, const Turn& turn, size_t offset, int dim,
                   int first = 0);

// Decays of channels: makes what the scans of one direction multiply. Before them.
void MakeOperands(const Scan& scan, cudaStream_t stream);

// What a segment of a sequence hands to the ranks that hold the others.
void Summarise(const Scan& scan, const SegmentLayout& layout, const TensorView* dout, void* state,
               float* log_transition, cudaStream_t stream);

// What a forward scan of a turn knows of the normaliser. Launches what finds z before each segment,
// of the same operands.
decay::KeySums KeySumsOf(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                         const ForwardLayout& layout, const Turn& turn, cudaStream_t stream);
// `out`: args.out, or fp32 [slices of K, B, T, H, V].
void RunForward(const Scan& scan, const SegmentLayout& segments, const TensorView& out,
                const decay::KeySums& key_sums, cudaStream_t stream);

// Where the gradients of one scan go.
struct GradientPlaces {
  TensorView dq, dk, dv, dlog_decay, dkey_scale;
  float* dlambda;
};
// The gradients' places as their layout says; `first` of the slices of V and, of what slices of K
// have each, `first_part`.
GradientPlaces PlacesOf(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                        const BackwardLayout& layout, const Turn& turn, int first);
// `grads` names what the scan reads beside its args, and the states' gradients.
void RunBackward(const Scan& scan, const DecayAttentionGradArgs& grads,
                 const BackwardLayout& layout, const GradientPlaces& places, cudaStream_t stream);

// A backward's scan over V: with the normaliser of rows of dout over their divisors.
Scan ReverseScanOf(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                   const Turn& turn);
// Over the column of ones, whose dL/d(sum of keys) are rows of ones, times what is in `factor`, of
// the turn's rows, when it runs, over their divisors.
struct ReverseScanOfOnes {
  Scan scan;
  TensorView dout;
  float* factor;
};
ReverseScanOfOnes MakeReverseScanOfOnes(const DecayAttentionArgs& args,
                                        const DecayAttentionPlan& plan,
                                        const NormaliserLayout& layout, const Turn& turn,
                                        cudaStream_t stream);

}  // namespace halflife::kernels::cuda
