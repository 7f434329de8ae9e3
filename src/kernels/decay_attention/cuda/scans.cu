// Decay attention on tensor cores: which scans run, over what, and what sums their slices. Host
// code.
//
// Blocks of a head that is wider than a block's state run side by side and leave fp32 partial sums
// that a second kernel adds up in the order of the slices. One block that took its slices in turn
// would need no such sums, but a head of 256 x 512 would be one block where eight can run, and
// a multiprocessor has no registers for more than a slice of dL/d(state) at once.
//
// A normalised output n / (d + eps) is two problems of one kind: n over the columns of V, d over a
// column of ones, with states and gradients of their own, whose dq, dk and decays add up.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "kernels/cuda/device.h"
#include "kernels/decay_attention/cuda/centre.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/normaliser.h"
#include "kernels/decay_attention/cuda/scans.h"
#include "kernels/decay_attention/cuda/workspace.h"

namespace halflife::kernels::cuda {
namespace {

struct Instance {
  int k, v;  // of a block
  void (*chunk_scan)(const decay::ChunkScanParams&, cudaStream_t);
  void (*channel_scan)(const decay::ChunkScanParams&, cudaStream_t);
  void (*reverse_scan)(const decay::ReverseScanParams&, int shared_limit, cudaStream_t);
  void (*channel_reverse_scan)(const decay::ReverseScanParams&, cudaStream_t);
  void (*state_scan)(const decay::StateScanParams&, cudaStream_t);
  void (*channel_state_scan)(const decay::StateScanParams&, cudaStream_t);
};
#define HL_DECAY_INSTANCE(K, V)           \
  {K,                                     \
   V,                                     \
   decay::LaunchChunkScan<K, V>,          \
   decay::LaunchChannelScan<K, V>,        \
   decay::LaunchReverseScan<K, V>,        \
   decay::LaunchChannelReverseScan<K, V>, \
   decay::LaunchStateScan<K, V>,          \
   decay::LaunchChannelStateScan<K, V>},
constexpr Instance kInstances[] = {
#define HL_DECAY_INSTANCE_64(V) HL_DECAY_INSTANCE(64, V)
#define HL_DECAY_INSTANCE_128(V) HL_DECAY_INSTANCE(128, V)
#include "kernels/decay_attention/cuda/instances/instances.inc"
};
#undef HL_DECAY_INSTANCE

constexpr int kOnesBlock = 64;  // columns

// With the normaliser a column of ones is scanned in blocks as wide in K, which a plan does not
// name.
constexpr bool HaveBlocksOfOnes() {
  for (const Instance& instance : kInstances) {
    bool found = false;
    for (const Instance& ones : kInstances)
      found = found || (ones.k == instance.k && ones.v == kOnesBlock);
    if (!found || instance.v < kOnesBlock) return false;  // none takes more shared memory
  }
  return true;
}
static_assert(HaveBlocksOfOnes());

const Instance& InstanceOf(const DecayBlock& block) {
  std::string names;
  for (const Instance& instance : kInstances) {
    if (instance.k == block.k && instance.v == block.v) return instance;
    names += Concat(" (", instance.k, ", ", instance.v, ")");
  }
  HL_FAIL(ExitCode::kUsage, "decay attention in blocks of (", block.k, ", ", block.v,
          ") of (K, V) is not compiled; these are:", names);
}

// The most shared memory a block may ask for.
int SharedMemoryLimit() {
#if HL_EMULATE
  // HL_EMU_SHARED_BYTES=166912 plays an sm_80.
  const char* const limit = std::getenv("HL_EMU_SHARED_BYTES");
  return limit == nullptr ? kMaxSharedBytesPerBlock : std::atoi(limit);
#else
  int device = 0, bytes = 0;
  const cudaError_t found = cudaGetDevice(&device);
  HL_CHECK_AS(ExitCode::kEnvironment, found == cudaSuccess,
              "cudaGetDevice: ", cudaGetErrorString(found));
  const cudaError_t known =
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  HL_CHECK_AS(ExitCode::kEnvironment, known == cudaSuccess, "shared memory of device ", device,
              ": ", cudaGetErrorString(known));
  return bytes;
#endif
}

bool IsNormalised(const DecayAttentionArgs& args) { return args.norm_kind == NormKind::kSumOfKeys; }

// One scan and those of its segments: of the problem itself, or of a column of ones.
struct Scan {
  DecayAttentionArgs args;  // without the normaliser
  DecayBlock block;
  int num_segments, checkpoint_every;
  bool splits_checkpoints;
  decay::RowScales row_scales;  // in reverse: of dout
  decay::Centre centre;         // in reverse

  const Instance& instance() const { return InstanceOf(block); }
  decay::SegmentShape Shape() const {
    const Slices slices = SlicesOf(args, block);
    return {num_segments, slices.keys, slices.values};
  }
  bool per_channel() const { return IsPerChannel(args.decay_kind); }
};
// What a plan says of one direction.
struct Direction {
  DecayBlock block;
  int num_segments;
};
Direction ForwardOf(const DecayAttentionPlan& plan) {
  return {plan.forward, std::max(plan.num_segments, 1)};
}
Direction BackwardOf(const DecayAttentionPlan& plan) {
  return {plan.backward, std::max(plan.backward_segments, 1)};
}

Scan ScanOf(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
            const Direction& direction) {
  Scan scan = {
      args, direction.block, direction.num_segments, plan.checkpoint_every, IsNormalised(args), {},
      {}};
  scan.args.norm_kind = NormKind::kNone;
  return scan;
}
// Of the sums of keys: v is one column of ones, the state is the normaliser's. The block is as wide
// in K, so that its slices are the problem's.
Scan ScanOfOnes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                const Direction& direction, const NormaliserLayout& layout) {
  Scan scan = ScanOf(args, plan, {{direction.block.k, kOnesBlock}, direction.num_segments});
  DecayAttentionArgs& ones = scan.args;
  ones.head_dim_v = 1;
  ones.num_v_heads = 1;
  ones.v = {At<bf16>(args.workspace, layout.one), 0, 0, 0, DType::kBF16};
  ones.initial_state = args.initial_norm;
  ones.final_state = args.final_norm;
  if (args.checkpoints != nullptr)
    ones.checkpoints = static_cast<char*>(args.checkpoints) + NormCheckpoints(args, plan);
  return scan;
}

// [slices, B, T, H, dim] fp32 in the workspace, from slice `first` on.
TensorView Partial(const DecayAttentionArgs& args, size_t offset, int dim, int first = 0) {
  const int64_t row = int64_t{1} * args.num_heads * dim;
  return {At<float>(args.workspace, offset) + int64_t{first} * args.batch * args.seq_len * row,
          row * args.seq_len, row, dim, DType::kF32};
}

// ---- segments ----

void LaunchStates(const Scan& scan, const decay::StateScanParams& own, cudaStream_t stream) {
  const Instance& instance = scan.instance();
  (scan.per_channel() ? instance.channel_state_scan : instance.state_scan)(own, stream);
}
decay::StateScanParams StateScanOf(const Scan& scan, const TensorView* dout) {
  decay::StateScanParams own = {};
  own.args = scan.args;
  own.reverse = dout != nullptr;
  if (own.reverse) own.dout = *dout;
  own.row_scales = scan.row_scales;
  own.shape = scan.Shape();
  own.checkpoint_every = scan.checkpoint_every;
  return own;
}

// Launches the scans of the segments for their own states and the scan over segments, which turns
// these into the states before each (reverse: dL/dS after each) and passes on what `over` says.
const float* ScanSegments(const Scan& scan, const SegmentLayout& layout, const TensorView* dout,
                          decay::SegmentScanParams over, cudaStream_t stream) {
  const DecayAttentionArgs& args = scan.args;
  decay::StateScanParams own = StateScanOf(scan, dout);
  own.states = At<float>(args.workspace, layout.states);
  own.log_transition = At<float>(args.workspace, layout.log_transition);
  own.transition_unit = 1;
  LaunchStates(scan, own, stream);
  over.num_states = int64_t{1} * args.num_sequences * args.num_heads;
  over.num_segments = scan.num_segments;
  over.state_elements = args.head_dim_k * args.head_dim_v;
  over.transitions = scan.per_channel() ? args.head_dim_k : 1;
  over.reverse = own.reverse;
  over.states = own.states;
  over.log2_transition = own.log_transition;
  decay::LaunchSegmentScan(over, stream);
  return own.states;
}
// What each segment starts from; null where there is one.
const float* SegmentStates(const Scan& scan, const SegmentLayout& layout, const TensorView* dout,
                           const void* initial_state, cudaStream_t stream) {
  if (scan.num_segments == 1) return nullptr;
  decay::SegmentScanParams over = {};
  over.initial_state = static_cast<const float*>(initial_state);
  return ScanSegments(scan, layout, dout, over, stream);
}

// What a segment of a sequence hands to the ranks that hold the others.
void Summarise(const Scan& scan, const SegmentLayout& layout, const TensorView* dout, void* state,
               float* log_transition, cudaStream_t stream) {
  if (scan.num_segments > 1) {
    decay::SegmentScanParams over = {};
    over.final_state = static_cast<float*>(state);
    over.log_transition = log_transition;
    ScanSegments(scan, layout, dout, over, stream);
    return;
  }
  decay::StateScanParams own = StateScanOf(scan, dout);  // one segment's own state is the summary
  own.states = static_cast<float*>(state);
  own.log_transition = log_transition;
  own.transition_unit = 0.693147180559945309f;
  LaunchStates(scan, own, stream);
}

// ---- forward ----

// `out`: args.out, or fp32 [slices of K, B, T, H, V].
void RunForward(const Scan& scan, const SegmentLayout& segments, const TensorView& out,
                cudaStream_t stream) {
  const Instance& instance = scan.instance();
  decay::ChunkScanParams params;
  params.args = scan.args;
  params.shape = scan.Shape();
  params.checkpoint_every = scan.checkpoint_every;
  params.splits_checkpoints = scan.splits_checkpoints;
  params.segment_states = SegmentStates(scan, segments, nullptr, scan.args.initial_state, stream);
  params.out = out;
  (scan.per_channel() ? instance.channel_scan : instance.chunk_scan)(params, stream);
}

// ---- backward ----

// Where the gradients of one scan go.
struct GradientPlaces {
  TensorView dq, dk, dv, dlog_decay, dkey_scale;
  float* dlambda;
};

// The gradients' places as their layout says; `first` of the slices of V and, of what slices of K
// have each, `first_part`.
GradientPlaces PlacesOf(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                        const BackwardLayout& layout, int first) {
  const DecayAttentionArgs& args = grads.forward;
  const bool per_channel = IsPerChannel(args.decay_kind);
  const int K = args.head_dim_k, decay_dim = per_channel ? K : 1;
  const int first_part = first * SlicesOf(args, plan.backward).keys;
  const int first_decay = per_channel ? first : first_part;
  const auto place = [&](const TensorView& gradient, int heads, int slices, int dim, size_t offset,
                         int slice) {
    const bool whole = heads == args.num_heads && slices == 1;
    return whole || gradient.data == nullptr ? gradient : Partial(args, offset, dim, slice);
  };
  const GradientSlices& slices = layout.slices;
  GradientPlaces places = {};
  places.dq = place(grads.dq, args.num_q_heads, slices.keys, K, layout.dq, first);
  places.dk = place(grads.dk, args.num_k_heads, slices.keys, K, layout.dk, first);
  places.dv = place(grads.dv, args.num_v_heads, slices.values, args.head_dim_v, layout.dv, 0);
  places.dkey_scale =
      place(grads.dkey_scale, args.num_heads, slices.tokens, 1, layout.dkey_scale, first_part);
  if (grads.dlog_decay.data == nullptr) return places;
  if (IsPerToken(args.decay_kind)) {
    places.dlog_decay = place(grads.dlog_decay, args.num_decay_heads, slices.decays, decay_dim,
                              layout.dlog_decay, first_decay);
  } else {
    places.dlambda = At<float>(args.workspace, layout.dlambda) +
                     int64_t{1} * first_decay * args.num_sequences * args.num_heads *
                         BackwardOf(plan).num_segments * decay_dim;
  }
  return places;
}

// `grads` names what the scan reads beside its args, and the states' gradients.
void RunBackward(const Scan& scan, const DecayAttentionGradArgs& grads,
                 const BackwardLayout& layout, const GradientPlaces& places, cudaStream_t stream) {
  const Instance& instance = scan.instance();
  decay::ReverseScanParams params;
  params.grads = grads;
  params.grads.forward = scan.args;
  params.row_scales = scan.row_scales;
  params.shape = scan.Shape();
  params.checkpoint_every = scan.checkpoint_every;
  params.splits_checkpoints = scan.splits_checkpoints;
  params.centre = scan.centre;
  params.group = At<char>(scan.args.workspace, layout.group);
  params.dq = places.dq;
  params.dk = places.dk;
  params.dv = places.dv;
  params.dlog_decay = places.dlog_decay;
  params.dkey_scale = places.dkey_scale;
  params.dlambda = places.dlambda;
  params.segment_states =
      SegmentStates(scan, layout.segments, &grads.dout, grads.dfinal_state, stream);
  if (scan.per_channel()) {
    instance.channel_reverse_scan(params, stream);
  } else {
    instance.reverse_scan(params, SharedMemoryLimit(), stream);
  }
}

// A backward's scan over V: with the normaliser of rows of dout over their divisors.
Scan ReverseScanOf(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  Scan scan = ScanOf(args, plan, BackwardOf(plan));
  if (IsNormalised(args)) scan.row_scales.divisors = static_cast<const float*>(args.norm_denom);
  return scan;
}
// Over the column of ones, whose dL/d(sum of keys) are rows of ones, times what is in `factor` when
// it runs, over their divisors.
struct ReverseScanOfOnes {
  Scan scan;
  TensorView dout;
  float* factor;
};
ReverseScanOfOnes MakeReverseScanOfOnes(const DecayAttentionArgs& args,
                                        const DecayAttentionPlan& plan,
                                        const NormaliserLayout& layout, cudaStream_t stream) {
  decay::LaunchOne(At<bf16>(args.workspace, layout.one), stream);
  ReverseScanOfOnes ones = {ScanOfOnes(args, plan, BackwardOf(plan), layout),
                            {},
                            At<float>(args.workspace, layout.factor)};
  ones.dout = ones.scan.args.v;
  ones.scan.row_scales = {ones.factor, static_cast<const float*>(args.norm_denom)};
  return ones;
}

// Of a normalised output: over centred values, then over the column of ones; see centre.h.
class CentredBackward {
 public:
  CentredBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                  const BackwardLayout& layout, cudaStream_t stream)
      : grads_(grads),
        plan_(plan),
        layout_(layout),
        stream_(stream),
        mean_(Region<float>(layout.normaliser.centre.mean)) {}

  void Run() {
    const DecayAttentionArgs& args = grads_.forward;
    if (has_tokens())
      decay::LaunchCentre({args, NumMeanPieces(args), Region<float>(centre().sums), mean_,
                           Region<bf16>(centre().values)},
                          stream_);
    const float* const dq = RunOverValues();
    RunOverOnes(dq);
  }

 private:
  bool has_tokens() const { return grads_.forward.num_chunks > 0; }  // else there is no mean
  const CentreLayout& centre() const { return layout_.normaliser.centre; }
  template <typename T>
  T* Region(size_t offset) const {
    return At<T>(grads_.forward.workspace, offset);
  }

  // Returns [slices of V, B, T, H, K], the part of dq.
  const float* RunOverValues() const {
    DecayAttentionArgs args = grads_.forward;
    const int64_t row = int64_t{1} * args.num_v_heads * args.head_dim_v;
    args.v = {Region<bf16>(centre().values), row * args.seq_len, row, args.head_dim_v,
              DType::kBF16};
    Scan scan = ReverseScanOf(args, plan_);
    if (has_tokens())
      scan.centre = {mean_,
                     static_cast<const char*>(args.checkpoints) + NormCheckpoints(args, plan_)};
    DecayAttentionGradArgs grads = grads_;
    grads.dinitial_state = dinitial_state();
    const GradientPlaces places = PlacesOf(grads_, plan_, layout_, /*first=*/0);
    RunBackward(scan, grads, layout_, places, stream_);
    return static_cast<const float*>(places.dq.data);
  }

  void RunOverOnes(const float* dq) const {
    const DecayAttentionArgs& args = grads_.forward;
    const ReverseScanOfOnes ones = MakeReverseScanOfOnes(args, plan_, layout_.normaliser, stream_);
    const int first = SlicesOf(args, plan_.backward).values;
    decay::LaunchCentredFactor({args, grads_.dout, mean_, first, dq, ones.factor}, stream_);
    DecayAttentionGradArgs grads = grads_;
    grads.dout = ones.dout;
    grads.dfinal_state = grads_.dfinal_norm;
    grads.dinitial_state = grads_.dinitial_norm;
    if (has_tokens() && grads_.dfinal_state != nullptr) {
      float* const shifted = Region<float>(centre().dfinal_norm);
      Shift(grads_.dfinal_state, grads_.dfinal_norm, 1, shifted);
      grads.dfinal_state = shifted;
    }
    GradientPlaces places = PlacesOf(grads_, plan_, layout_, first);
    places.dv = Partial(args, layout_.normaliser.sums, 1);
    RunBackward(ones.scan, grads, layout_, places, stream_);
    if (has_tokens() && grads_.dinitial_norm != nullptr)
      Shift(dinitial_state(), grads_.dinitial_norm, -1, static_cast<float*>(grads_.dinitial_norm));
  }

  // That of the sum of keys is found by it, wanted or not.
  void* dinitial_state() const {
    if (grads_.dinitial_state != nullptr || grads_.dinitial_norm == nullptr)
      return grads_.dinitial_state;
    return Region<float>(centre().dinitial_state);
  }
  void Shift(const void* states, const void* norms, float sign, float* shifted) const {
    decay::LaunchShiftNorms({grads_.forward, mean_, static_cast<const float*>(states),
                             static_cast<const float*>(norms), sign, shifted},
                            stream_);
  }

  const DecayAttentionGradArgs& grads_;
  const DecayAttentionPlan& plan_;
  const BackwardLayout& layout_;
  const cudaStream_t stream_;
  float* const mean_;
};

// Sums over slices, and over heads that share.
void SumGradients(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                  const BackwardLayout& layout, cudaStream_t stream) {
  const DecayAttentionArgs& args = grads.forward;
  const int decay_dim = IsPerChannel(args.decay_kind) ? args.head_dim_k : 1;
  const auto sum = [&](const TensorView& gradient, int heads, int slices, int dim, size_t offset) {
    if (gradient.data == nullptr || (heads == args.num_heads && slices == 1)) return;
    decay::LaunchReduceHeads({At<float>(args.workspace, offset), gradient, slices, args.batch,
                              args.seq_len, args.num_heads, heads, dim},
                             stream);
  };
  const GradientSlices& slices = layout.slices;
  sum(grads.dq, args.num_q_heads, slices.keys, args.head_dim_k, layout.dq);
  sum(grads.dk, args.num_k_heads, slices.keys, args.head_dim_k, layout.dk);
  sum(grads.dv, args.num_v_heads, slices.values, args.head_dim_v, layout.dv);
  sum(grads.dkey_scale, args.num_heads, slices.tokens, 1, layout.dkey_scale);
  if (grads.dlog_decay.data == nullptr) return;
  if (IsPerToken(args.decay_kind)) {
    sum(grads.dlog_decay, args.num_decay_heads, slices.decays, decay_dim, layout.dlog_decay);
  } else {
    decay::LaunchReduceConstant(
        {At<float>(args.workspace, layout.dlambda), static_cast<float*>(grads.dlog_decay.data),
         slices.decays, args.num_sequences, BackwardOf(plan).num_segments, args.num_heads,
         args.num_decay_heads, decay_dim},
        stream);
  }
}

}  // namespace

void CheckBlocks(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  const int limit = SharedMemoryLimit();
  const auto check = [&](const char* what, const DecayBlock& block, int bytes) {
    HL_CHECK_AS(ExitCode::kUsage, bytes <= limit, "decay attention, ", what, " in blocks of ",
                block.k, " x ", block.v, ": ", bytes, " bytes of shared memory, where a block has ",
                limit, "; a plan made for this device would work");
  };
  if (ForwardRoute(args, plan) != Route::kSimt) {
    InstanceOf(plan.forward);
    check("forward", plan.forward, ForwardSharedBytes(args.decay_kind, plan.forward));
  }
  if (BackwardRoute(args, plan) != Route::kSimt) {
    InstanceOf(plan.backward);
    check("backward", plan.backward, BackwardSharedBytes(args.decay_kind, plan.backward));
  }
}

void ScanForward(const DecayAttentionArgs& given, const DecayAttentionPlan& plan,
                 cudaStream_t stream) {
  DecayAttentionArgs args = given;
  // They have no room where the backward takes none.
  if (BackwardRoute(args, plan) == Route::kSimt) args.checkpoints = nullptr;
  const ForwardLayout layout = MakeForwardLayout(args, plan);
  const Scan scan = ScanOf(args, plan, ForwardOf(plan));
  const int num_slices = scan.Shape().num_key_slices;
  const TensorView partial = Partial(args, layout.out, args.head_dim_v);
  if (!IsNormalised(args)) {
    RunForward(scan, layout.segments, num_slices == 1 ? args.out : partial, stream);
    if (num_slices > 1)
      decay::LaunchReduceHeads(
          {static_cast<const float*>(partial.data), args.out, num_slices, args.batch, args.seq_len,
           args.num_heads, args.num_heads, args.head_dim_v},
          stream);
    return;
  }
  RunForward(scan, layout.segments, partial, stream);
  decay::LaunchOne(At<bf16>(args.workspace, layout.normaliser.one), stream);
  const TensorView sums = Partial(args, layout.normaliser.sums, 1);
  RunForward(ScanOfOnes(args, plan, ForwardOf(plan), layout.normaliser), layout.segments, sums,
             stream);
  decay::LaunchNormalise({args, num_slices, static_cast<const float*>(partial.data),
                          static_cast<const float*>(sums.data)},
                         stream);
}

void ScanBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                  cudaStream_t stream) {
  const DecayAttentionArgs& args = grads.forward;
  HL_CHECK(args.num_chunks == 0 || args.checkpoints != nullptr,
           "backward of decay attention: the forward left no checkpoints");
  const BackwardLayout layout = MakeBackwardLayout(args, plan);
  if (IsNormalised(args)) {
    CentredBackward(grads, plan, layout, stream).Run();
  } else {
    RunBackward(ReverseScanOf(args, plan), grads, layout,
                PlacesOf(grads, plan, layout, /*first=*/0), stream);
  }
  SumGradients(grads, plan, layout, stream);
}

void ScanSummary(const DecaySegmentArgs& args, const DecayAttentionPlan& plan,
                 cudaStream_t stream) {
  const DecayAttentionArgs& forward = args.forward;
  const ForwardLayout layout = MakeSummaryLayout(forward, plan);
  float* const log_transition = static_cast<float*>(args.log_transition);
  Summarise(ScanOf(forward, plan, ForwardOf(plan)), layout.segments, nullptr, args.state,
            log_transition, stream);
  if (!IsNormalised(forward)) return;
  decay::LaunchOne(At<bf16>(forward.workspace, layout.normaliser.one), stream);
  Summarise(ScanOfOnes(forward, plan, ForwardOf(plan), layout.normaliser), layout.segments, nullptr,
            args.norm, nullptr, stream);
}

void ScanReverseSummary(const DecaySegmentArgs& args, const DecayAttentionPlan& plan,
                        cudaStream_t stream) {
  const DecayAttentionArgs& forward = args.forward;
  const BackwardLayout layout = MakeReverseSummaryLayout(forward, plan);
  Summarise(ReverseScanOf(forward, plan), layout.segments, &args.dout, args.state, nullptr, stream);
  if (!IsNormalised(forward)) return;
  const ReverseScanOfOnes ones = MakeReverseScanOfOnes(forward, plan, layout.normaliser, stream);
  decay::LaunchOutputFactor({forward, args.dout, ones.factor}, stream);
  Summarise(ones.scan, layout.segments, &ones.dout, args.norm, nullptr, stream);
}

}  // namespace halflife::kernels::cuda
