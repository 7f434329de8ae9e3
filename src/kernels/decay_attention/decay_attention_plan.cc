#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/common/cpu/head_groups.h"
#include "kernels/common/shape_problems.h"
#include "kernels/decay_attention/cpu/workspace.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/decay_attention_call_checks.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels {
namespace {

constexpr int kMaxSegments = 64;  // the scan over segments is serial
// The maximum distance between saved states on the CPU. Saving more states costs memory traffic;
// with fewer states, the group of states that the reverse scan holds exceeds a core's cache.
constexpr int kHostGroupTokens = 256, kHostGroupChunks = 8;

void CheckView(ShapeProblems& problems, const char* name, const TensorView& view, int heads,
               int64_t width) {
  if (view.data == nullptr) return;
  problems.Unless(view.stride_b >= 0 && view.stride_t >= 0 && view.stride_h >= 0, name,
                  " has a negative stride");
  const bool apart = heads <= 1 || view.stride_h == 0 || view.stride_h >= width;
  problems.Unless(apart, name, ": heads ", view.stride_h, " elements apart overlap, each has ",
                  width);
}

void CheckHeads(ShapeProblems& problems, const char* name, int heads, int num_heads) {
  problems.Unless(heads >= 1 && num_heads >= 1 && num_heads % std::max(heads, 1) == 0, name, " ",
                  heads, " does not divide num_heads ", num_heads);
}

void CheckDTypes(ShapeProblems& problems, const DecayAttentionArgs& args,
                 const DeviceLimits& limits) {
  const DType dtype = args.q.dtype;
  const bool fits = dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF64;
  problems.Unless(fits, "q is ", Name(dtype), ". Use bf16 or fp32 (on the CPU also fp64)");
  problems.Unless(!limits.is_cuda || dtype != DType::kF64, "fp64 runs on the CPU only");
  problems.Unless(args.k.dtype == dtype && args.v.dtype == dtype && args.out.dtype == dtype,
                  "q, k, v, out are ", Name(dtype), ", ", Name(args.k.dtype), ", ",
                  Name(args.v.dtype), ", ", Name(args.out.dtype), ". Use one dtype for all");
  const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  problems.Unless(args.log_decay.data == nullptr || args.log_decay.dtype == wide, "log_decay is ",
                  Name(args.log_decay.dtype), ", not ", Name(wide));
  problems.Unless(args.key_scale.data == nullptr || args.key_scale.dtype == wide, "key_scale is ",
                  Name(args.key_scale.dtype), ", not ", Name(wide));
}

void CheckShape(const DecayAttentionArgs& args, const DeviceLimits& limits) {
  ShapeProblems problems("decay attention");
  problems.Unless(args.batch >= 0 && args.seq_len >= 0, "batch ", args.batch, ", seq_len ",
                  args.seq_len, ": negative");
  problems.Unless(args.num_heads >= 1, "num_heads is ", args.num_heads);
  CheckHeads(problems, "num_q_heads", args.num_q_heads, args.num_heads);
  CheckHeads(problems, "num_k_heads", args.num_k_heads, args.num_heads);
  CheckHeads(problems, "num_v_heads", args.num_v_heads, args.num_heads);
  if (args.decay_kind != DecayKind::kNone)
    CheckHeads(problems, "num_decay_heads", args.num_decay_heads, args.num_heads);
  problems.Unless(args.head_dim_k >= 1 && args.head_dim_k <= kMaxHeadDimK, "head_dim_k ",
                  args.head_dim_k, " is outside 1 .. ", kMaxHeadDimK);
  problems.Unless(args.head_dim_v >= 1 && args.head_dim_v <= kMaxHeadDimV, "head_dim_v ",
                  args.head_dim_v, " is outside 1 .. ", kMaxHeadDimV);
  problems.Unless(std::isfinite(args.scale), "scale is ", args.scale);
  problems.Unless(args.norm_kind == NormKind::kNone || args.norm_eps > 0, "norm_eps is ",
                  args.norm_eps, "; it must be positive");
  const bool has_tokens = args.batch > 0 && args.seq_len > 0;  // without tokens there is no data
  problems.Unless(args.decay_kind != DecayKind::kNone || args.log_decay.data == nullptr,
                  "log_decay is given, but the kind is none");
  problems.Unless(
      args.decay_kind == DecayKind::kNone || args.log_decay.data != nullptr || !has_tokens,
      "log_decay is missing");
  CheckView(problems, "q", args.q, args.num_q_heads, args.head_dim_k);
  CheckView(problems, "k", args.k, args.num_k_heads, args.head_dim_k);
  CheckView(problems, "v", args.v, args.num_v_heads, args.head_dim_v);
  CheckView(problems, "out", args.out, args.num_heads, args.head_dim_v);
  CheckView(problems, "log_decay", args.log_decay, args.num_decay_heads,
            IsPerChannel(args.decay_kind) ? args.head_dim_k : 1);
  CheckView(problems, "key_scale", args.key_scale, args.num_heads, 1);
  CheckDTypes(problems, args, limits);
  problems.Throw();
}

// Returns the number of segments on the CPU, which does not depend on the number of threads.
// Several segments are used only if sequences and heads give too few work items, because the
// additional pass over k and v costs a quarter of a forward.
int HostSegments(const DecayAttentionArgs& args, int64_t num_sequences) {
  constexpr int64_t kEnoughItems = 4, kMinTokens = 1024;
  const int64_t items = std::max<int64_t>(1, num_sequences * args.num_heads);
  int segments = 1;
  while (2 * segments * items <= kEnoughItems &&
         args.seq_len / (2 * segments) >=
             std::max<int64_t>(kMinTokens, 8 * std::max(args.head_dim_k, args.head_dim_v)))
    segments *= 2;
  return segments;
}

// Estimates the time of a scan in seconds: the larger of memory time and MMA time, each increased
// if multiprocessors are idle, plus the launches.
double ScanSeconds(const DecayAttentionArgs& args, const DeviceLimits& limits, int64_t num_states,
                   const cuda::ScanCost& cost, const cuda::Slices& slices, int segments) {
  const bool segmented = segments > 1;
  const double tokens = 1.0 * args.batch * args.seq_len * args.num_heads;
  // Each segment's state is written once, read and rewritten by the scan over segments, and read
  // again.
  const double states =
      segmented ? 16.0 * args.head_dim_k * args.head_dim_v * num_states * segments : 0.0;
  const double bytes = tokens * (cost.bytes + (segmented ? cost.segment_bytes : 0.0)) + states;
  const double flops = tokens * (cost.flops + (segmented ? cost.segment_flops : 0.0));
  const double blocks = 1.0 * std::max<int64_t>(num_states, 1) * slices.count() * segments;
  const double slots = 1.0 * limits.num_sms * cost.blocks_per_sm;
  const double utilisation = blocks / (slots * std::ceil(blocks / slots));
  const double active = std::min(1.0, blocks / limits.num_sms);
  return std::max(bytes / (4.3e12 * std::min(1.0, 1.5 * active)), flops / (5e14 * utilisation)) +
         4e-6 * (segmented ? 3 : 1);
}

// Returns the number of segments, a power of 2, with the smallest estimated time; of equal times,
// the smaller number. A block reads at least four times as many bytes of its segment as its state
// has.
int ChooseSegments(const DecayAttentionArgs& args, const DeviceLimits& limits,
                   const cuda::ScanCost& cost, const DecayBlock& block) {
  const int64_t num_states = int64_t{1} * args.num_sequences * args.num_heads;
  const cuda::Slices slices = cuda::SlicesOf(args, block);
  const int64_t min_tokens =
      4 * std::max(std::min(args.head_dim_k, block.k), std::min(args.head_dim_v, block.v));
  int best = 1;
  double best_seconds = ScanSeconds(args, limits, num_states, cost, slices, best);
  for (int n = 2; n <= kMaxSegments && args.seq_len / n >= min_tokens; n *= 2) {
    const double seconds = ScanSeconds(args, limits, num_states, cost, slices, n);
    if (seconds >= best_seconds) continue;
    best = n;
    best_seconds = seconds;
  }
  return best;
}

// For the per-token reverse scan, whose shared memory is at most 86 KiB.
constexpr int kSimtBlocksPerSm = 2;

// Returns the problem of the largest batch tile by itself.
DecayAttentionArgs LargestBatchTileProblem(const DecayAttentionArgs& args, int num_batch_tiles) {
  const BatchTile batch_tile = LargestBatchTile(args, num_batch_tiles);
  DecayAttentionArgs own = args;
  own.batch = batch_tile.num_rows;
  own.num_sequences = batch_tile.num_sequences;
  return own;
}

// Sets the number of batch tiles of both directions: `requested`, unless that is 0. Segments are
// chosen afterwards, for the states of one tile: they fill a device that a tile leaves idle.
void ChooseBatchTiles(const DecayAttentionArgs& args, const DeviceLimits& limits, int requested,
                      DecayAttentionPlan& plan) {
  if (requested > 0) {
    plan.forward_batch_tiles = plan.backward_batch_tiles = requested;
    return;
  }
  const int64_t shared = limits.shared_memory_bytes, heads = args.num_heads;
  const auto slots = [&](int blocks_per_sm) { return int64_t{1} * limits.num_sms * blocks_per_sm; };
  const auto forward_bytes = [&](int batch_tiles) {
    DecayAttentionPlan tiled = plan;
    tiled.forward_batch_tiles = batch_tiles;
    return cuda::ForwardWorkspaceBytes(args, tiled);
  };
  const auto backward_bytes = [&](int batch_tiles) {
    DecayAttentionPlan tiled = plan;
    tiled.backward_batch_tiles = batch_tiles;
    return cuda::BackwardWorkspaceBytes(args, tiled);
  };
  if (plan.forward.k == 0) {  // the recurrent (per-token) kernel: a forward has no partial sums
    const int64_t slices = decay::SimtSlices(args, decay::SimtMode::kStates);
    plan.backward_batch_tiles =
        cuda::ChooseNumBatchTiles(args, {heads * slices, slots(kSimtBlocksPerSm)}, backward_bytes);
    return;
  }
  plan.forward_batch_tiles =
      cuda::ChooseNumBatchTiles(args,
                                {heads * cuda::SlicesOf(args, plan.forward).count(),
                                 slots(cuda::ForwardCost(args, plan, shared).blocks_per_sm)},
                                forward_bytes);
  plan.backward_batch_tiles =
      cuda::ChooseNumBatchTiles(args,
                                {heads * cuda::SlicesOf(args, plan.backward).count(),
                                 slots(cuda::BackwardCost(args, plan, shared).blocks_per_sm)},
                                backward_bytes);
}

// Sets the blocks, the batch tiles and the segments of both directions. The sizes of workspaces are
// computed for rows that are one document each. So a plan depends neither on the boundaries of
// documents nor on unused entries of a table, and a recorded graph has the bits of any launch.
void DeviceSchedule(const DecayAttentionArgs& given, const DeviceLimits& limits,
                    int requested_batch_tiles, DecayAttentionPlan& plan) {
  DecayAttentionArgs args = given;
  args.num_chunks = cuda::NumChunksOfRows(args);
  plan.is_cuda = true;
  plan.forward = cuda::ForwardBlock(args, limits.shared_memory_bytes);
  plan.backward = cuda::BackwardBlock(args, limits.shared_memory_bytes);
  // Use blocks in both directions or in neither: the backward reads the checkpoints of the forward.
  if (plan.forward.k == 0 || plan.backward.k == 0) plan.forward = plan.backward = {};
  // The reverse scan for per-channel decays keeps four states per chunk of a group. Those of all
  // resident blocks must fit into the L2 cache.
  if (IsPerChannel(args.decay_kind)) plan.checkpoint_every = 2;
  if (plan.forward.k == 0) {  // the recurrent (per-token) kernel has no segments
    ChooseBatchTiles(args, limits, requested_batch_tiles, plan);
    return;
  }
  const int64_t num_states = int64_t{1} * args.num_sequences * args.num_heads;
  plan.forward_warpgroups = limits.warpgroups && cuda::CanUseWgmma(args, plan.forward);
  // For short sequences, halving V gives more blocks than segments would. With one decay per token,
  // the wgmma scan has no such narrower blocks for K = 128; it takes three quarters of the time of
  // an mma.sync scan (bench/RESULTS.md).
  const bool has_narrower = !plan.forward_warpgroups || IsPerChannel(args.decay_kind);
  if (has_narrower && args.seq_len < 16 * std::max(args.head_dim_k, args.head_dim_v) &&
      num_states * cuda::SlicesOf(args, plan.forward).count() < limits.num_sms)
    plan.forward.v = 64;
  plan.backward_warpgroups = limits.warpgroups && cuda::CanUseWgmmaBackward(args, plan.backward);
  ChooseBatchTiles(args, limits, requested_batch_tiles, plan);
  // The states of all chunks of a row may need too much memory, and more than the mma.sync scan
  // (not with decays of channels).
  DecayAttentionPlan by_warps = plan;
  by_warps.backward_warpgroups = false;
  const size_t bytes = cuda::BackwardWorkspaceBytes(args, plan);
  if (plan.backward_warpgroups && bytes > cuda::WorkspaceLimit(args) &&
      bytes > cuda::BackwardWorkspaceBytes(args, by_warps)) {
    plan.backward_warpgroups = false;
    ChooseBatchTiles(args, limits, requested_batch_tiles, plan);
  }
  const int64_t shared = limits.shared_memory_bytes;
  plan.num_segments = ChooseSegments(LargestBatchTileProblem(args, plan.forward_batch_tiles),
                                     limits, cuda::ForwardCost(args, plan, shared), plan.forward);
  plan.backward_segments =
      ChooseSegments(LargestBatchTileProblem(args, plan.backward_batch_tiles), limits,
                     cuda::BackwardCost(args, plan, shared), cuda::ReverseScanBlock(plan));
}

cpu::SegmentLayout AddSegments(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                               cpu::Regions& regions) {
  if (plan.num_segments <= 1) return {};
  const size_t bytes = cpu::ComputeBytes(args);
  const size_t pieces = size_t(1) * args.num_sequences * args.num_heads * plan.num_segments;
  const size_t keys = args.head_dim_k;
  return {
      .states = regions.Add(pieces * keys * args.head_dim_v * bytes),
      .norms = regions.Add(args.norm_kind == NormKind::kSumOfKeys ? pieces * keys * bytes : 0),
      .log_transition = regions.Add(pieces * (IsPerChannel(args.decay_kind) ? keys : 1) * bytes)};
}

}  // namespace

DecayAttentionPlan MakePlan(const DecayAttentionArgs& given, const DeviceLimits& limits,
                            const PlanRequest& request) {
  CheckShape(given, limits);
  HL_CHECK_AS(ExitCode::kUsage, request.num_segments <= kMaxSegments, "decay attention in ",
              request.num_segments, " segments. Use at most ", kMaxSegments, ".");
  DecayAttentionArgs args = given;
  if (args.num_sequences == 0) args.num_sequences = args.batch;
  DecayAttentionPlan plan;
  plan.chunk_size = request.chunk_size > 0 ? request.chunk_size : DefaultChunkSize(limits.is_cuda);
  if (limits.is_cuda) {
    DeviceLimits usable = limits;
    usable.warpgroups = limits.warpgroups && request.warpgroups == WarpgroupUse::kAuto;
    if (request.batch_tiles > 0) CheckBatchTiles(args, request.batch_tiles);
    DeviceSchedule(args, usable, request.batch_tiles, plan);
  } else {
    plan.checkpoint_every = std::clamp(kHostGroupTokens / plan.chunk_size, 1, kHostGroupChunks);
    plan.num_segments = plan.backward_segments = HostSegments(args, args.num_sequences);
    const int64_t token_bytes = int64_t{2} * (args.head_dim_k + args.head_dim_v) * args.num_heads *
                                static_cast<int64_t>(SizeOf(args.q.dtype));
    plan.block_chunks = cpu::ChunksPerBlock(token_bytes, plan.chunk_size, plan.checkpoint_every);
  }
  if (request.num_segments > 0) plan.num_segments = plan.backward_segments = request.num_segments;
  return plan;
}

namespace cpu {

ForwardLayout MakeForwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  Regions regions;
  ForwardLayout layout;
  layout.segments = AddSegments(args, plan, regions);
  layout.bytes = regions.bytes();
  return layout;
}

BackwardLayout MakeBackwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  const size_t bytes = ComputeBytes(args);
  const size_t rows = size_t(1) * args.batch * args.seq_len * args.num_heads;
  const size_t keys = args.head_dim_k, values = args.head_dim_v;
  const size_t decays = IsPerChannel(args.decay_kind) ? keys : 1;
  const auto shared = [&](int heads, size_t width) {
    return heads < args.num_heads ? rows * width * bytes : 0;
  };
  const bool constant = args.decay_kind != DecayKind::kNone && !IsPerToken(args.decay_kind);
  Regions regions;
  BackwardLayout layout;
  layout.segments = AddSegments(args, plan, regions);
  layout.dq = regions.Add(shared(args.num_q_heads, keys));
  layout.dk = regions.Add(shared(args.num_k_heads, keys));
  layout.dv = regions.Add(shared(args.num_v_heads, values));
  layout.dlog_decay =
      regions.Add(IsPerToken(args.decay_kind) ? shared(args.num_decay_heads, decays) : 0);
  layout.dlambda = regions.Add(
      constant ? size_t(8) * args.num_sequences * plan.num_segments * args.num_heads * decays : 0);
  layout.bytes = regions.bytes();
  return layout;
}

CheckpointLayout MakeCheckpointLayout(const DecayAttentionArgs& args,
                                      const DecayAttentionPlan& plan) {
  const size_t bytes = ComputeBytes(args);
  const size_t keys = args.head_dim_k;
  Regions regions;
  CheckpointLayout layout;
  layout.num_slots = NumCheckpointSlots(args.num_chunks, args.num_sequences, plan.checkpoint_every);
  const size_t pieces = size_t(layout.num_slots) * args.num_heads;
  regions.Add(pieces * keys * args.head_dim_v * bytes);
  layout.norms = regions.Add(args.norm_kind == NormKind::kSumOfKeys ? pieces * keys * bytes : 0);
  layout.bytes = regions.bytes();
  return layout;
}

}  // namespace cpu

size_t ForwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return plan.is_cuda ? cuda::ForwardWorkspaceBytes(args, plan)
                      : cpu::MakeForwardLayout(args, plan).bytes;
}
size_t BackwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return plan.is_cuda ? cuda::BackwardWorkspaceBytes(args, plan)
                      : cpu::MakeBackwardLayout(args, plan).bytes;
}
size_t SummaryWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return plan.is_cuda ? cuda::MakeSummaryLayout(args, plan).bytes
                      : cpu::MakeForwardLayout(args, plan).bytes;
}
size_t ReverseSummaryWorkspaceBytes(const DecayAttentionArgs& args,
                                    const DecayAttentionPlan& plan) {
  return plan.is_cuda ? cuda::MakeReverseSummaryLayout(args, plan).bytes
                      : cpu::MakeForwardLayout(args, plan).bytes;
}
size_t CheckpointBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return plan.is_cuda ? cuda::CheckpointBytes(args, plan)
                      : cpu::MakeCheckpointLayout(args, plan).bytes;
}

}  // namespace halflife::kernels
