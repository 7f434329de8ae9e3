// Decay attention on tensor cores: selects the scans and their operands, and sums their slices.
// Host code.
//
// If a head is wider than a block's part of the state, its blocks run in parallel and store fp32
// partial sums, which a second kernel adds in the order of the slices. One block that processed its
// slices in sequence would need no such sums. However, a head of 256 x 512 would then use one block
// where eight can run, and a multiprocessor has registers for only one slice of dL/d(state).
//
// The partial sums of one batch tile are added before the next batch tile reuses the workspace.
//
// A normalised output n / (d + eps) consists of two problems of the same form: n over the columns
// of V, and d over a column of ones. Each has its own states and gradients; their dq, dk and decay
// gradients are added. The forward computes both in one scan (key_sums.cuh). The states of segments
// and the gradients need one scan each.
#include <algorithm>
#include <cstddef>

#include "core/error.h"
#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/normalised_backward.h"
#include "kernels/decay_attention/cuda/normaliser.h"
#include "kernels/decay_attention/cuda/scan_launch.h"
#include "kernels/decay_attention/cuda/tensor_core_path.h"
#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::cuda {
namespace {

// Sums gradients over slices, and over heads that share an operand, for the rows of a batch tile.
void SumGradients(const DecayAttentionGradArgs& grads, const BackwardLayout& layout,
                  const BatchTile& batch_tile, cudaStream_t stream) {
  const DecayAttentionArgs& args = grads.forward;
  const auto sum = [&](const TensorView& gradient, int heads, int slices, int dim, size_t offset) {
    if (gradient.data == nullptr || (heads == args.num_heads && slices == 1)) return;
    decay::LaunchReduceHeads(
        {At<float>(args.workspace, offset), BatchTileRows(gradient, batch_tile), slices,
         batch_tile.num_rows, args.seq_len, args.num_heads, heads, dim},
        stream);
  };
  const GradientSlices& slices = layout.slices;
  sum(grads.dq, args.num_q_heads, slices.keys, args.head_dim_k, layout.dq);
  sum(grads.dk, args.num_k_heads, slices.keys, args.head_dim_k, layout.dk);
  sum(grads.dv, args.num_v_heads, slices.values, args.head_dim_v, layout.dv);
  sum(grads.dkey_scale, args.num_heads, slices.tokens, 1, layout.dkey_scale);
  if (IsPerToken(args.decay_kind))
    sum(grads.dlog_decay, args.num_decay_heads, slices.decays,
        IsPerChannel(args.decay_kind) ? args.head_dim_k : 1, layout.dlog_decay);
}
// Sums the gradient of a constant decay over the sequences of all batch tiles.
void SumConstantDecay(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                      const BackwardLayout& layout, cudaStream_t stream) {
  const DecayAttentionArgs& args = grads.forward;
  if (grads.dlog_decay.data == nullptr || IsPerToken(args.decay_kind)) return;
  const DecaySums sums = DecaySumsOf(args, plan);
  decay::LaunchReduceConstant(
      {At<float>(args.workspace, layout.dlambda), static_cast<float*>(grads.dlog_decay.data),
       layout.slices.decays, sums.num_sequences, sums.pieces, args.num_heads, args.num_decay_heads,
       sums.width},
      stream);
}

void ForwardBatchTile(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                      const ForwardLayout& layout, const BatchTile& batch_tile,
                      cudaStream_t stream) {
  Scan scan = MakeScan(args, plan, ForwardDirection(plan, batch_tile));
  scan.operands = At<char>(args.workspace, layout.operands);
  MakeOperands(scan, stream);
  const int num_slices = scan.Shape().num_key_slices;
  const bool partial = num_slices > 1;
  RunForward(scan, layout.segments,
             partial ? Partial(args, batch_tile, layout.out, args.head_dim_v) : args.out,
             PrepareKeySums(args, plan, layout, batch_tile, stream), stream);
  if (!partial) return;
  const float* const numerators = At<float>(args.workspace, layout.out);
  if (IsNormalised(args)) {
    decay::LaunchNormalise({BatchTileProblem(args, batch_tile), num_slices, numerators,
                            At<float>(args.workspace, layout.normaliser.sums)},
                           stream);
  } else {
    decay::LaunchReduceHeads(
        {numerators, BatchTileRows(args.out, batch_tile), num_slices, batch_tile.num_rows,
         args.seq_len, args.num_heads, args.num_heads, args.head_dim_v},
        stream);
  }
}

void BackwardBatchTile(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                       const BackwardLayout& layout, const BatchTile& batch_tile,
                       cudaStream_t stream) {
  if (IsNormalised(grads.forward)) {
    NormalisedBackward(grads, plan, layout, batch_tile, stream).Run();
  } else {
    RunBackward(MakeReverseScan(grads.forward, plan, batch_tile), grads, layout,
                MakeGradientOutputs(grads, plan, layout, batch_tile, /*first=*/0), stream);
  }
  SumGradients(grads, layout, batch_tile, stream);
}

}  // namespace

void ScanForward(const DecayAttentionArgs& given, const DecayAttentionPlan& plan,
                 cudaStream_t stream) {
  DecayAttentionArgs args = given;
  // CheckpointBytes() is 0 if the backward uses none.
  if (BackwardRoute(args, plan) == Route::kSimt) args.checkpoints = nullptr;
  const ForwardLayout layout = MakeForwardLayout(args, plan);
  for (int i = 0; i < plan.forward_batch_tiles; ++i)
    ForwardBatchTile(args, plan, layout, MakeBatchTile(args, i, plan.forward_batch_tiles), stream);
}

void ScanBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& given,
                  cudaStream_t stream) {
  const DecayAttentionArgs& args = grads.forward;
  DecayAttentionPlan plan = given;
  plan.backward_warpgroups = CanUseWgmmaBackward(grads, plan);
  HL_CHECK(args.num_chunks == 0 || args.checkpoints != nullptr,
           "backward of decay attention: the forward left no checkpoints");
  const BackwardLayout layout = MakeBackwardLayout(args, plan);
  for (int i = 0; i < plan.backward_batch_tiles; ++i)
    BackwardBatchTile(grads, plan, layout, MakeBatchTile(args, i, plan.backward_batch_tiles),
                      stream);
  SumConstantDecay(grads, plan, layout, stream);
}

void ScanSummary(const DecaySegmentArgs& args, const DecayAttentionPlan& plan,
                 cudaStream_t stream) {
  const DecayAttentionArgs& forward = args.forward;
  const ForwardLayout layout = MakeSummaryLayout(forward, plan);
  const Direction direction = ForwardDirection(plan, MakeBatchTile(forward, 0, 1));
  float* const log_transition = static_cast<float*>(args.log_transition);
  Scan scan = MakeScan(forward, plan, direction);
  scan.operands = At<char>(forward.workspace, layout.operands);
  Summarise(scan, layout.segments, nullptr, args.state, log_transition, stream);
  if (!IsNormalised(forward)) return;
  decay::LaunchStoreOne(At<bf16>(forward.workspace, layout.normaliser.one), stream);
  Scan ones = MakeNormaliserScan(forward, plan, direction, layout.normaliser);
  ones.operands = scan.operands;
  Summarise(ones, layout.segments, nullptr, args.norm, nullptr, stream);
}

void ScanReverseSummary(const DecaySegmentArgs& args, const DecayAttentionPlan& plan,
                        cudaStream_t stream) {
  const DecayAttentionArgs& forward = args.forward;
  const BackwardLayout layout = MakeReverseSummaryLayout(forward, plan);
  const BatchTile all = MakeBatchTile(forward, 0, 1);
  Scan scan = MakeReverseScan(forward, plan, all);
  scan.operands = At<char>(forward.workspace, layout.operands);
  Summarise(scan, layout.segments, &args.dout, args.state, nullptr, stream);
  if (!IsNormalised(forward)) return;
  ReverseNormaliserScan ones =
      MakeReverseNormaliserScan(forward, plan, layout.normaliser, all, stream);
  ones.scan.operands = scan.operands;
  decay::LaunchOutputFactor({forward, args.dout, ones.factor}, stream);
  Summarise(ones.scan, layout.segments, &ones.dout, args.norm, nullptr, stream);
}

}  // namespace halflife::kernels::cuda
