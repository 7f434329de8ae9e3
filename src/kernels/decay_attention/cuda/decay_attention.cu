// Dispatch of decay attention on CUDA: checks a call, and launches the scans on tensor cores or the
// recurrent (per-token) kernels. Host code.
#include <algorithm>
#include <cstddef>
#include <limits>

#include "core/error.h"
#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/normaliser.h"
#include "kernels/decay_attention/cuda/scan_launch.h"
#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/decay_attention/decay_attention_call_checks.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::cuda {
namespace {

// device, chunk sizes, chunks between checkpoints
constexpr PlanLimits kPlanLimits = {"CUDA", 64, 64, std::numeric_limits<int>::max()};

bool HasWork(const DecayAttentionArgs& args) { return args.num_sequences > 0; }

void CheckPlan(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
               size_t workspace_bytes) {
  const DType dtype = args.q.dtype;
  HL_CHECK_AS(ExitCode::kUsage,
              (dtype == DType::kF32 || dtype == DType::kBF16) && args.k.dtype == dtype &&
                  args.v.dtype == dtype,
              "decay attention on CUDA with q, k, v of ", Name(dtype), ", ", Name(args.k.dtype),
              ", ", Name(args.v.dtype), ". Use bf16 or fp32 for all.");
  HL_CHECK_AS(ExitCode::kUsage,
              args.head_dim_k >= 1 && args.head_dim_k <= kMaxHeadDimK && args.head_dim_v >= 1 &&
                  args.head_dim_v <= kMaxHeadDimV,
              "decay attention on CUDA with head_dim_k ", args.head_dim_k, ", head_dim_v ",
              args.head_dim_v, ". Use K of 1 to ", kMaxHeadDimK, " and V of 1 to ", kMaxHeadDimV,
              ".");
  CheckPlanAndTable(args, plan, kPlanLimits, workspace_bytes);
  CheckConstantDecay(args.decay_kind, args.log_decay, args.num_decay_heads, args.head_dim_k);
  CheckBatchTiles(args, plan.forward_batch_tiles);
  CheckBatchTiles(args, plan.backward_batch_tiles);
  CheckBlocks(args, plan);
  // Upper bound of the product of the slices of K and V.
  constexpr int64_t kMaxSlices = int64_t{kMaxHeadDimK / 64} * (kMaxHeadDimV / 64);
  const int segments = std::max({plan.num_segments, plan.backward_segments, 1});
  const int64_t blocks = kMaxSlices * args.num_sequences * args.num_heads * segments;
  HL_CHECK_AS(ExitCode::kUsage, blocks <= 0x7fffffff, "decay attention over ", args.num_sequences,
              " sequences of ", args.num_heads, " heads in ", segments,
              " segments: more blocks than a launch takes");
}

// ---- the scans on tensor cores ----
//
// If a head is wider than a block's part of the state, its blocks run in parallel and store fp32
// partial sums, which a second kernel adds in the order of the slices. One block that processed its
// slices in sequence would need no such sums. However, a head of 256 x 512 would then use one block
// where eight can run, and a multiprocessor has registers for only one slice of dL/d(state). The
// gradients of chunks with wgmma have a block for each chunk, which sums over V.
//
// The partial sums of one batch tile are added before the next batch tile reuses the workspace.
//
// A normalised output n / (d + eps) consists of two problems of the same form: n over the columns
// of V, and d over a column of ones. Each has its own states and gradients; their dq, dk and decay
// gradients are added. The forward computes both in one scan (key_sums.cuh). The states of segments
// and the gradients need one scan each.

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
       sums.width, sums.pieces_of_chunk > 0 ? args.sequence_begin + args.num_sequences : nullptr,
       sums.pieces_of_chunk},
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
  decay::LaunchStoreOne(At<char>(forward.workspace, layout.normaliser.one), forward.v.dtype,
                        stream);
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

// ---- the recurrent (per-token) kernels ----

bool IsWide(const DecayAttentionArgs& args) { return args.q.dtype == DType::kF32; }

void SimtScan(const decay::SimtScanParams& params, cudaStream_t stream) {
  if (IsWide(params.args)) {
    decay::LaunchSimtScan<float>(params, stream);
  } else {
    decay::LaunchSimtScan<bf16>(params, stream);
  }
}
void SimtReverseScan(const decay::SimtReverseScanParams& params, cudaStream_t stream) {
  if (IsWide(params.grads.forward)) {
    decay::LaunchSimtReverseScan<float>(params, stream);
  } else {
    decay::LaunchSimtReverseScan<bf16>(params, stream);
  }
}

// Computes dL/d(sum of keys), [B, T, H], into `dnorm`. Returns null without the normaliser.
const float* NormGradient(const DecayAttentionGradArgs& grads, float* dnorm, cudaStream_t stream) {
  if (grads.forward.norm_kind == NormKind::kNone) return nullptr;
  if (IsWide(grads.forward)) {
    decay::LaunchSimtNormGradient<float>(grads, dnorm, stream);
  } else {
    decay::LaunchSimtNormGradient<bf16>(grads, dnorm, stream);
  }
  return dnorm;
}

void SimtForward(const DecayAttentionArgs& args, cudaStream_t stream) {
  decay::SimtScanParams params = {};
  params.args = args;
  params.mode = decay::SimtMode::kOutput;
  SimtScan(params, stream);
}

// Returns the parameters of one batch tile's reverse scan. A constant decay's gradient covers all
// tiles.
decay::SimtReverseScanParams SimtReverseParams(const DecayAttentionGradArgs& grads,
                                               const BackwardLayout& layout,
                                               const BatchTile& batch_tile) {
  const DecayAttentionArgs& args = grads.forward;
  const bool per_token = IsPerToken(args.decay_kind);
  const bool wants_decay = grads.dlog_decay.data != nullptr;
  const int64_t rows_before = int64_t{1} * batch_tile.first_row * args.seq_len * args.num_heads;
  const auto partial = [&](size_t offset, int width) {
    return ShiftToBatchStart<float>(args.workspace, offset, rows_before * width);
  };
  decay::SimtReverseScanParams params = {};
  params.grads = grads;
  params.grads.forward.batch = batch_tile.num_rows;
  params.batch_tile = batch_tile;
  params.states = At<float>(args.workspace, layout.simt_states);
  if (IsNormalised(args)) params.dnorm = At<float>(args.workspace, layout.dnorm);
  params.dq = partial(layout.dq, args.head_dim_k);
  params.dk = partial(layout.dk, args.head_dim_k);
  params.dv = partial(layout.dv, args.head_dim_v);
  if (wants_decay && per_token)
    params.dlog_decay =
        partial(layout.dlog_decay, IsPerChannel(args.decay_kind) ? args.head_dim_k : 1);
  if (wants_decay && !per_token) params.dlambda = At<float>(args.workspace, layout.dlambda);
  if (grads.dkey_scale.data != nullptr) params.dkey_scale = partial(layout.dkey_scale, 1);
  return params;
}

// Sums gradients over slices and over heads that share an operand, for the rows of a batch tile.
void SumSimtGradients(const DecayAttentionGradArgs& grads, const BackwardLayout& layout,
                      const BatchTile& batch_tile, cudaStream_t stream) {
  const DecayAttentionArgs& args = grads.forward;
  const auto sum = [&](const TensorView& gradient, int heads, int dim, size_t offset, int slices) {
    if (gradient.data == nullptr) return;
    decay::LaunchReduceHeads(
        {At<float>(args.workspace, offset), BatchTileRows(gradient, batch_tile), slices,
         batch_tile.num_rows, args.seq_len, args.num_heads, heads, dim},
        stream);
  };
  const int slices = layout.slices.keys;
  sum(grads.dq, args.num_q_heads, args.head_dim_k, layout.dq, slices);
  sum(grads.dk, args.num_k_heads, args.head_dim_k, layout.dk, slices);
  sum(grads.dv, args.num_v_heads, args.head_dim_v, layout.dv, 1);
  sum(grads.dkey_scale, args.num_heads, 1, layout.dkey_scale, slices);
  if (IsPerToken(args.decay_kind))
    sum(grads.dlog_decay, args.num_decay_heads, IsPerChannel(args.decay_kind) ? args.head_dim_k : 1,
        layout.dlog_decay, slices);
}

void SimtBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                  cudaStream_t stream) {
  const DecayAttentionArgs& args = grads.forward;
  const BackwardLayout layout = MakeBackwardLayout(args, plan);
  decay::SimtScanParams forward = {};
  forward.args = args;
  forward.args.final_state = nullptr;
  forward.args.final_norm = nullptr;
  forward.mode = decay::SimtMode::kStates;
  forward.states = At<float>(args.workspace, layout.simt_states);
  SimtScan(forward, stream);

  NormGradient(grads, At<float>(args.workspace, layout.dnorm), stream);
  for (int i = 0; i < plan.backward_batch_tiles; ++i) {
    const BatchTile batch_tile = MakeBatchTile(args, i, plan.backward_batch_tiles);
    SimtReverseScan(SimtReverseParams(grads, layout, batch_tile), stream);
    SumSimtGradients(grads, layout, batch_tile, stream);
  }
  if (grads.dlog_decay.data == nullptr || IsPerToken(args.decay_kind)) return;
  decay::LaunchReduceConstant(
      {At<float>(args.workspace, layout.dlambda), static_cast<float*>(grads.dlog_decay.data),
       /*num_slices=*/1, args.num_sequences, /*num_segments=*/layout.slices.keys, args.num_heads,
       args.num_decay_heads, IsPerChannel(args.decay_kind) ? args.head_dim_k : 1,
       /*num_chunks=*/nullptr, /*parts_of_chunk=*/0},
      stream);
}

}  // namespace

void Forward(const DecayAttentionArgs& args, const DecayAttentionPlan& plan, cudaStream_t stream) {
  if (!HasWork(args)) return;
  CheckPlan(args, plan, cuda::ForwardWorkspaceBytes(args, plan));
  CheckForwardTensors(args);
  if (ForwardRoute(args, plan) == Route::kSimt) {
    SimtForward(args, stream);
  } else {
    ScanForward(args, plan, stream);
  }
}

void Backward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
              cudaStream_t stream) {
  if (!HasWork(grads.forward)) return;
  CheckPlan(grads.forward, plan, cuda::BackwardWorkspaceBytes(grads.forward, plan));
  CheckGradientTensors(grads);
  CheckConstantDecay(grads.forward.decay_kind, grads.dlog_decay, grads.forward.num_decay_heads,
                     grads.forward.head_dim_k);
  if (BackwardRoute(grads.forward, plan) == Route::kSimt) {
    SimtBackward(grads, plan, stream);
  } else {
    ScanBackward(grads, plan, stream);
  }
}

void Step(const DecayAttentionStepArgs& args, cudaStream_t stream) {
  CheckStep(args, /*is_cuda=*/true);
  if (args.batch == 0) return;
  if (args.q.dtype == DType::kF32) {
    decay::LaunchStep<float>(args, stream);
  } else {
    decay::LaunchStep<bf16>(args, stream);
  }
}

void Summarise(const DecaySegmentArgs& args, const DecayAttentionPlan& plan, cudaStream_t stream) {
  const DecayAttentionArgs& forward = args.forward;
  if (!HasWork(forward)) return;
  CheckPlan(forward, plan, MakeSummaryLayout(forward, plan).bytes);
  CheckSummary(args, /*reverse=*/false);
  if (ForwardRoute(forward, plan) == Route::kSimt) {
    decay::SimtScanParams params = {};
    params.args = forward;
    params.args.final_state = args.state;
    params.args.final_norm = args.norm;
    params.mode = decay::SimtMode::kSummary;
    params.log_transition = static_cast<float*>(args.log_transition);
    SimtScan(params, stream);
  } else {
    ScanSummary(args, plan, stream);
  }
}

void BackwardSummarise(const DecaySegmentArgs& args, const DecayAttentionPlan& plan,
                       cudaStream_t stream) {
  const DecayAttentionArgs& forward = args.forward;
  if (!HasWork(forward)) return;
  CheckPlan(forward, plan, MakeReverseSummaryLayout(forward, plan).bytes);
  CheckSummary(args, /*reverse=*/true);
  if (BackwardRoute(forward, plan) == Route::kSimt) {
    decay::SimtReverseScanParams params = {};
    params.grads.forward = forward;
    params.batch_tile = MakeBatchTile(forward, 0, 1);
    params.grads.dout = args.dout;
    params.grads.dinitial_state = args.state;
    params.grads.dinitial_norm = args.norm;
    params.dnorm = NormGradient(
        params.grads, At<float>(forward.workspace, MakeReverseSummaryLayout(forward, plan).dnorm),
        stream);
    params.summary = true;
    SimtReverseScan(params, stream);
  } else {
    ScanReverseSummary(args, plan, stream);
  }
}

}  // namespace halflife::kernels::cuda
