#include "kernels/decay_attention/cuda/workspace.h"

#include <algorithm>

#include "core/dtype.h"
#include "kernels/decay_attention/cuda/channel_chunks.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::cuda {
namespace {

constexpr size_t kHalf = 2;  // bytes per bf16

class Regions {
 public:
  size_t Add(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + 255) / 256 * 256;
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

size_t Pieces(const DecayAttentionArgs& args, int num_sequences, int num_segments) {
  return size_t{1} * num_sequences * args.num_heads * std::max(num_segments, 1);
}

// Returns the number of states per chunk that a reverse scan stores for a group. With per-channel
// decays, it works in tiles of 16 tokens.
size_t StatesPerChunk(const DecayAttentionArgs& args) {
  return IsPerChannel(args.decay_kind) ? 4 : 1;
}

size_t OperandBytes(const DecayAttentionArgs& args, const BatchTile& batch_tile,
                    const DecayBlock& block) {
  if (!IsPerChannel(args.decay_kind)) return 0;
  const int64_t tiles =
      decay::MaxTilesInBatchTile(args, batch_tile.num_sequences, SlicesOf(args, block).keys);
  return static_cast<size_t>(tiles) * decay::ChannelOperandBytes(block.k, NumTerms(args));
}
// The same in chunks, for the wgmma scan.
size_t ChunkOperandBytes(const DecayAttentionArgs& args, const BatchTile& batch_tile) {
  if (!IsPerChannel(args.decay_kind)) return 0;
  return static_cast<size_t>(
             decay::MaxStatesInBatchTile(args, batch_tile.num_sequences, /*num_parts=*/1)) *
         decay::ChannelChunkBytes(args.head_dim_k);
}
size_t ProductBytes(const DecayAttentionArgs& args, const BatchTile& batch_tile,
                    const DecayBlock& block) {
  if (!IsPerChannel(args.decay_kind)) return 0;
  const Slices slices = SlicesOf(args, block);
  return static_cast<size_t>(
             decay::MaxTilesInBatchTile(args, batch_tile.num_sequences, slices.keys)) *
         slices.values * decay::ChannelProductElements(block.k) * sizeof(float);
}

// Empty if there is only one segment.
SegmentLayout AddSegments(const DecayAttentionArgs& args, int num_sequences, int num_segments,
                          Regions& regions) {
  SegmentLayout layout;
  if (num_segments <= 1) return layout;
  const size_t pieces = Pieces(args, num_sequences, num_segments);
  layout.states = regions.Add(pieces * args.head_dim_k * args.head_dim_v * sizeof(float));
  const size_t transitions = IsPerChannel(args.decay_kind) ? args.head_dim_k : 1;
  layout.log_transition = regions.Add(pieces * transitions * sizeof(float));
  return layout;
}

void AddFactors(const DecayAttentionArgs& args, int num_sequences, SegmentLayout& layout,
                Regions& regions) {
  layout.factors = regions.Add(
      static_cast<size_t>(decay::MaxStatesInBatchTile(args, num_sequences, /*num_parts=*/1)) *
      decay::kChunkFactorsBytes);
}

size_t Rows(const DecayAttentionArgs& args, int batch) {
  return size_t{1} * batch * args.seq_len * args.num_heads;
}
bool IsNormalised(const DecayAttentionArgs& args) { return args.norm_kind == NormKind::kSumOfKeys; }
// Returns true if a saved state has two terms of bf16: for fp32 operands, and with the normaliser.
bool HasTwoTerms(const DecayAttentionArgs& args) {
  return IsNormalised(args) || NumTerms(args) == 2;
}
// Returns the number of rows [K] in all saved states of a forward.
size_t CheckpointRows(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  const auto slots = static_cast<size_t>(
      NumCheckpointSlots(args.num_chunks, args.num_sequences, plan.checkpoint_every));
  return (HasTwoTerms(args) ? 2 : 1) * slots * args.num_heads * args.head_dim_k;
}
bool HasConstantDecay(const DecayAttentionArgs& args) {
  return args.decay_kind != DecayKind::kNone && !IsPerToken(args.decay_kind);
}

// Counts the slices of gradients. The normaliser's scan is one more slice of V.
GradientSlices SlicesOfGradients(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  const Slices slices = SlicesOf(args, plan.backward);
  const bool sums_over_values = IsPerChannel(args.decay_kind) || plan.backward_warpgroups;
  GradientSlices count;
  count.keys = (sums_over_values ? 1 : slices.values) + (IsNormalised(args) ? 1 : 0);
  count.values = slices.keys;
  count.tokens = count.keys * slices.keys;
  count.decays = IsPerChannel(args.decay_kind) ? count.keys : count.tokens;
  return count;
}

ValueMeanLayout AddValueMean(const DecayAttentionArgs& args, const BatchTile& batch_tile,
                             Regions& regions) {
  const size_t means = size_t{1} * batch_tile.num_rows * args.num_v_heads * args.head_dim_v;
  const size_t norms = size_t{1} * batch_tile.num_sequences * args.num_heads * args.head_dim_k;
  ValueMeanLayout value_mean;
  value_mean.sums = regions.Add(NumMeanPieces(args) * means * sizeof(float));
  value_mean.mean = regions.Add(means * sizeof(float));
  value_mean.values = regions.Add(args.seq_len * means * SizeOf(args.v.dtype));
  value_mean.dfinal_norm = regions.Add(norms * sizeof(float));
  value_mean.dinitial_state = regions.Add(norms * args.head_dim_v * sizeof(float));
  return value_mean;
}

void AddScanBackward(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                     BackwardLayout& layout, Regions& regions) {
  const BatchTile batch_tile = LargestBatchTile(args, plan.backward_batch_tiles);
  const size_t rows = Rows(args, batch_tile.num_rows), keys = args.head_dim_k,
               values = args.head_dim_v;
  const size_t decays = IsPerChannel(args.decay_kind) ? keys : 1;
  const Slices slices = SlicesOf(args, plan.backward);
  const GradientSlices& sums = layout.slices = SlicesOfGradients(args, plan);
  const auto partial = [&](int heads, int num_slices, size_t width) {
    return heads < args.num_heads || num_slices > 1 ? num_slices * rows * width * sizeof(float) : 0;
  };
  const size_t pieces = Pieces(args, batch_tile.num_sequences, plan.backward_segments);
  layout.segments = AddSegments(args, batch_tile.num_sequences, plan.backward_segments, regions);
  if (StatesByWarpgroups(args, plan) && (plan.backward_warpgroups || plan.backward_segments > 1))
    AddFactors(args, batch_tile.num_sequences, layout.segments, regions);
  layout.operands =
      regions.Add(plan.backward_warpgroups ? ChunkOperandBytes(args, batch_tile)
                                           : OperandBytes(args, batch_tile, plan.backward));
  layout.products =
      regions.Add(plan.backward_warpgroups ? 0 : ProductBytes(args, batch_tile, plan.backward));
  const size_t state = NumTerms(args) * size_t{1} * plan.backward.k * plan.backward.v * kHalf;
  if (plan.backward_warpgroups) {
    const size_t states =
        decay::MaxStatesInBatchTile(args, batch_tile.num_sequences, slices.count());
    layout.states = regions.Add(states * state);
    layout.adjoints = regions.Add(states * state);
  } else {
    layout.group =
        regions.Add(pieces * slices.count() * plan.checkpoint_every * StatesPerChunk(args) * state);
  }
  layout.dq = regions.Add(partial(args.num_q_heads, sums.keys, keys));
  layout.dk = regions.Add(partial(args.num_k_heads, sums.keys, keys));
  layout.dv = regions.Add(partial(args.num_v_heads, sums.values, values));
  layout.dlog_decay = regions.Add(
      IsPerToken(args.decay_kind) ? partial(args.num_decay_heads, sums.decays, decays) : 0);
  const size_t decay_sums = DecaySumsOf(args, plan).count(args.num_heads);
  layout.dlambda =
      regions.Add(HasConstantDecay(args) ? sums.decays * decay_sums * sizeof(float) : 0);
  layout.dkey_scale =
      regions.Add(args.key_scale.data != nullptr ? partial(args.num_heads, sums.tokens, 1) : 0);
  if (!IsNormalised(args)) return;
  layout.normaliser.one = regions.Add(SizeOf(args.v.dtype));
  layout.normaliser.sums = regions.Add(slices.keys * rows * sizeof(float));
  layout.normaliser.factor = regions.Add(rows * sizeof(float));
  layout.normaliser.value_mean = AddValueMean(args, batch_tile, regions);
}

void AddSimtBackward(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                     BackwardLayout& layout, Regions& regions) {
  const size_t rows = Rows(args, LargestBatchTile(args, plan.backward_batch_tiles).num_rows);
  const size_t keys = args.head_dim_k, values = args.head_dim_v;
  const size_t decays = IsPerChannel(args.decay_kind) ? keys : 1;
  const int num_slices = decay::SimtSlices(args, decay::SimtMode::kStates);
  const size_t slices = num_slices, states = size_t{1} * args.num_chunks * args.num_heads;
  layout.slices = {num_slices, 1, num_slices, num_slices};
  layout.simt_states =
      regions.Add(states * keys * (values + (IsNormalised(args) ? 1 : 0)) * sizeof(float));
  layout.dnorm = regions.Add(IsNormalised(args) ? Rows(args, args.batch) * sizeof(float) : 0);
  layout.dq = regions.Add(slices * rows * keys * sizeof(float));
  layout.dk = regions.Add(slices * rows * keys * sizeof(float));
  layout.dv = regions.Add(rows * values * sizeof(float));
  layout.dkey_scale =
      regions.Add(args.key_scale.data != nullptr ? slices * rows * sizeof(float) : 0);
  layout.dlog_decay =
      regions.Add(IsPerToken(args.decay_kind) ? slices * rows * decays * sizeof(float) : 0);
  layout.dlambda = regions.Add(HasConstantDecay(args) ? slices * args.num_sequences *
                                                            args.num_heads * decays * sizeof(float)
                                                      : 0);
}

}  // namespace
}  // namespace halflife::kernels::cuda

namespace halflife::kernels::decay {

int SimtSlices(const DecayAttentionArgs& args, SimtMode mode) {
  const bool normalised = args.norm_kind == NormKind::kSumOfKeys;
  if (normalised && mode == SimtMode::kOutput)
    return (args.head_dim_v + kSimtColumns - 2) / (kSimtColumns - 1);
  return (args.head_dim_v + (normalised ? 1 : 0) + kSimtColumns - 1) / kSimtColumns;
}

}  // namespace halflife::kernels::decay

namespace halflife::kernels::cuda {

DecaySums DecaySumsOf(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  if (plan.backward_warpgroups)
    return {1, args.num_chunks, IsPerChannel(args.decay_kind) ? args.head_dim_k : 1, 1};
  constexpr int kTilesOfChunk = decay::kChunk / decay::kTile;
  if (IsPerChannel(args.decay_kind))
    return {1, args.num_chunks * kTilesOfChunk, args.head_dim_k, kTilesOfChunk};
  return {args.num_sequences, std::max(plan.backward_segments, 1), 1, 0};
}
int NumMeanPieces(const DecayAttentionArgs& args) {
  return (args.seq_len + decay::kMeanTokens - 1) / decay::kMeanTokens;
}

ForwardLayout MakeForwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  Regions regions;
  ForwardLayout layout;
  if (ForwardRoute(args, plan) == Route::kSimt) return layout;
  const BatchTile batch_tile = LargestBatchTile(args, plan.forward_batch_tiles);
  const size_t slices = SlicesOf(args, plan.forward).keys, rows = Rows(args, batch_tile.num_rows);
  layout.segments = AddSegments(args, batch_tile.num_sequences, plan.num_segments, regions);
  if (StatesByWarpgroups(args, plan) && plan.num_segments > 1)
    AddFactors(args, batch_tile.num_sequences, layout.segments, regions);
  layout.operands =
      regions.Add(plan.forward_warpgroups ? ChunkOperandBytes(args, batch_tile)
                                          : OperandBytes(args, batch_tile, plan.forward));
  if (slices > 1) layout.out = regions.Add(slices * rows * args.head_dim_v * sizeof(float));
  if (IsNormalised(args)) {
    if (slices > 1) layout.normaliser.sums = regions.Add(slices * rows * sizeof(float));
    if (plan.num_segments > 1) layout.normaliser.one = regions.Add(SizeOf(args.v.dtype));
    DecayAttentionArgs ones = args;
    ones.head_dim_v = 1;
    layout.normaliser.segments =
        AddSegments(ones, batch_tile.num_sequences, plan.num_segments, regions);
  }
  layout.bytes = regions.bytes();
  return layout;
}

BackwardLayout MakeBackwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  Regions regions;
  BackwardLayout layout;
  if (BackwardRoute(args, plan) == Route::kSimt) {
    AddSimtBackward(args, plan, layout, regions);
  } else {
    AddScanBackward(args, plan, layout, regions);
  }
  layout.bytes = regions.bytes();
  return layout;
}

ForwardLayout MakeSummaryLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  Regions regions;
  ForwardLayout layout;
  if (ForwardRoute(args, plan) == Route::kSimt) return layout;
  layout.segments = AddSegments(args, args.num_sequences, plan.num_segments, regions);
  if (StatesByWarpgroups(args, plan))
    AddFactors(args, args.num_sequences, layout.segments, regions);
  layout.operands = regions.Add(OperandBytes(args, MakeBatchTile(args, 0, 1), plan.forward));
  if (IsNormalised(args)) layout.normaliser.one = regions.Add(SizeOf(args.v.dtype));
  layout.bytes = regions.bytes();
  return layout;
}

BackwardLayout MakeReverseSummaryLayout(const DecayAttentionArgs& args,
                                        const DecayAttentionPlan& plan) {
  Regions regions;
  BackwardLayout layout;
  const size_t factors = IsNormalised(args) ? Rows(args, args.batch) * sizeof(float) : 0;
  if (BackwardRoute(args, plan) == Route::kSimt) {
    layout.dnorm = regions.Add(factors);
  } else {
    layout.segments = AddSegments(args, args.num_sequences, plan.backward_segments, regions);
    if (StatesByWarpgroups(args, plan))
      AddFactors(args, args.num_sequences, layout.segments, regions);
    layout.operands = regions.Add(OperandBytes(args, MakeBatchTile(args, 0, 1), plan.backward));
    layout.normaliser.one = regions.Add(IsNormalised(args) ? SizeOf(args.v.dtype) : 0);
    layout.normaliser.factor = regions.Add(factors);
  }
  layout.bytes = regions.bytes();
  return layout;
}

size_t ForwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return MakeForwardLayout(args, plan).bytes;
}
size_t BackwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  DecayAttentionPlan by_warps = plan;
  by_warps.backward_warpgroups = false;
  return std::max(MakeBackwardLayout(args, plan).bytes, MakeBackwardLayout(args, by_warps).bytes);
}
size_t CheckpointBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  if (BackwardRoute(args, plan) == Route::kSimt) return 0;
  return CheckpointRows(args, plan) * (args.head_dim_v + (IsNormalised(args) ? 1 : 0)) * kHalf;
}
size_t NormCheckpoints(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return CheckpointRows(args, plan) * args.head_dim_v * kHalf;
}

// ---- batch tiles ----

namespace {

constexpr size_t kSmallWorkspace = size_t{512} << 20, kLargeWorkspace = size_t{2} << 30;

// Returns the smallest number of batch tiles whose workspace is within `limit`; otherwise one tile
// per row.
int BatchTilesWithin(size_t limit, int batch,
                     const std::function<size_t(int batch_tiles)>& bytes_of) {
  int low = 1, high = batch;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (bytes_of(middle) <= limit) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

size_t TensorBytes(const DecayAttentionArgs& args) {
  const size_t keys = args.head_dim_k, values = args.head_dim_v;
  const size_t decays = !IsPerToken(args.decay_kind) ? 0
                        : IsPerChannel(args.decay_kind)
                            ? sizeof(float) * args.num_decay_heads * keys
                            : sizeof(float) * args.num_decay_heads;
  const size_t of_token = SizeOf(args.q.dtype) * (keys * (args.num_q_heads + args.num_k_heads) +
                                                  values * (args.num_v_heads + args.num_heads)) +
                          decays;
  return of_token * args.batch * args.seq_len;
}
size_t WorkspaceLimit(const DecayAttentionArgs& args) {
  return std::max(kLargeWorkspace, 3 * TensorBytes(args));
}
int NumChunksOfRows(const DecayAttentionArgs& args) {
  return args.batch * ((args.seq_len + decay::kChunk - 1) / decay::kChunk);
}
bool DocumentsExceedWorkspaceLimit(const DecayAttentionArgs& args, size_t bytes) {
  return args.num_chunks > NumChunksOfRows(args) && bytes > WorkspaceLimit(args);
}

int ChooseNumBatchTiles(const DecayAttentionArgs& args, const BatchTileBlocks& blocks,
                        const std::function<size_t(int batch_tiles)>& bytes_of) {
  if (args.num_sequences != args.batch || args.batch <= 1) return 1;
  const int64_t full = 2 * blocks.slots - blocks.slots / 4;
  const int64_t rows = (full + blocks.blocks_per_row - 1) / blocks.blocks_per_row;
  const int busy = static_cast<int>(std::max<int64_t>(1, args.batch / rows));
  const int wanted = std::min(busy, BatchTilesWithin(kSmallWorkspace, args.batch, bytes_of));
  return std::max(wanted, BatchTilesWithin(WorkspaceLimit(args), args.batch, bytes_of));
}

}  // namespace halflife::kernels::cuda
