#include "kernels/decay_attention/cuda/workspace.h"

#include <algorithm>

#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/partition.h"

namespace halflife::kernels::cuda {
namespace {

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

size_t Pieces(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return size_t{1} * args.num_sequences * args.num_heads * std::max(plan.num_segments, 1);
}

// States that a reverse scan keeps for each chunk of a group: with decays of channels it goes by
// tiles of 16 tokens.
size_t StatesPerChunk(const DecayAttentionArgs& args) {
  return IsPerChannel(args.decay_kind) ? 4 : 1;
}

SegmentLayout AddSegments(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                          Regions& regions) {
  SegmentLayout layout;
  const size_t pieces = Pieces(args, plan);
  layout.states = regions.Add(pieces * args.head_dim_k * args.head_dim_v * sizeof(float));
  const size_t transitions = IsPerChannel(args.decay_kind) ? args.head_dim_k : 1;
  layout.log_transition = regions.Add(pieces * transitions * sizeof(float));
  return layout;
}

bool FitsInstance(const DecayAttentionArgs& args) {
  return args.q.dtype == DType::kBF16 && args.norm_kind == NormKind::kNone &&
         args.head_dim_k <= 128;
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

Route ForwardRoute(const DecayAttentionArgs& args) {
  if (!FitsInstance(args)) return Route::kSimt;
  return IsPerChannel(args.decay_kind) ? Route::kChannelScan : Route::kTensorCores;
}
Route BackwardRoute(const DecayAttentionArgs& args) {
  return args.head_dim_v <= 128 ? ForwardRoute(args) : Route::kSimt;
}

ForwardLayout MakeForwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  Regions regions;
  ForwardLayout layout;
  if (plan.num_segments > 1 && ForwardRoute(args) != Route::kSimt)
    layout.segments = AddSegments(args, plan, regions);
  layout.bytes = regions.bytes();
  return layout;
}

BackwardLayout MakeBackwardLayout(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  const size_t rows = size_t{1} * args.batch * args.seq_len * args.num_heads;
  const size_t keys = args.head_dim_k, values = args.head_dim_v;
  const size_t decays = IsPerChannel(args.decay_kind) ? keys : 1;
  const bool constant = args.decay_kind != DecayKind::kNone && !IsPerToken(args.decay_kind);
  const bool normalised = args.norm_kind == NormKind::kSumOfKeys;
  Regions regions;
  BackwardLayout layout;
  if (BackwardRoute(args) == Route::kSimt) {
    const size_t slices = decay::SimtSlices(args, decay::SimtMode::kStates);
    const size_t states = size_t{1} * args.num_chunks * args.num_heads;
    layout.simt_states = regions.Add(states * keys * (values + normalised) * sizeof(float));
    layout.dnorm = regions.Add(normalised ? rows * sizeof(float) : 0);
    layout.dq = regions.Add(slices * rows * keys * sizeof(float));
    layout.dk = regions.Add(slices * rows * keys * sizeof(float));
    layout.dv = regions.Add(rows * values * sizeof(float));
    layout.dkey_scale =
        regions.Add(args.key_scale.data != nullptr ? slices * rows * sizeof(float) : 0);
    layout.dlog_decay =
        regions.Add(IsPerToken(args.decay_kind) ? slices * rows * decays * sizeof(float) : 0);
    layout.dlambda = regions.Add(
        constant ? slices * args.num_sequences * args.num_heads * decays * sizeof(float) : 0);
  } else {
    const auto shared = [&](int heads, size_t width) {
      return heads < args.num_heads ? rows * width * sizeof(float) : 0;
    };
    const size_t k = keys <= 64 ? 64 : 128, v = values <= 64 ? 64 : 128;
    if (plan.num_segments > 1) layout.segments = AddSegments(args, plan, regions);
    layout.group =
        regions.Add(Pieces(args, plan) * plan.checkpoint_every * StatesPerChunk(args) * k * v * 2);
    layout.dq = regions.Add(shared(args.num_q_heads, keys));
    layout.dk = regions.Add(shared(args.num_k_heads, keys));
    layout.dv = regions.Add(shared(args.num_v_heads, values));
    layout.dlog_decay =
        regions.Add(IsPerToken(args.decay_kind) ? shared(args.num_decay_heads, decays) : 0);
    layout.dlambda = regions.Add(constant ? Pieces(args, plan) * decays * sizeof(float) : 0);
  }
  layout.bytes = regions.bytes();
  return layout;
}

size_t ForwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return MakeForwardLayout(args, plan).bytes;
}
size_t BackwardWorkspaceBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return MakeBackwardLayout(args, plan).bytes;
}
size_t CheckpointBytes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  if (BackwardRoute(args) == Route::kSimt) return 0;
  const auto slots = static_cast<size_t>(
      NumCheckpointSlots(args.num_chunks, args.num_sequences, plan.checkpoint_every));
  return slots * args.num_heads * args.head_dim_k * args.head_dim_v * 2;
}

}  // namespace halflife::kernels::cuda
