// One scan of decay attention: selects the compiled instance for its blocks, and sets up its
// segments and its gradient outputs. Host code.
#include "kernels/decay_attention/cuda/one_scan.h"

#include <cstdlib>
#include <string>

#include "core/error.h"
#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/normaliser.h"
#include "kernels/decay_attention/cuda/scans.h"

namespace halflife::kernels::cuda {
namespace {

struct Instance {
  int k, v;  // owned by a block
  void (*chunk_scan)(const decay::ChunkScanParams&, cudaStream_t);
  void (*warpgroup_scan)(const decay::ChunkScanParams&, cudaStream_t);  // for wide blocks
  void (*channel_operands)(const decay::ChannelOperandsParams&, cudaStream_t);
  void (*channel_scan)(const decay::ChunkScanParams&, cudaStream_t);
  void (*reverse_scan)(const decay::ReverseScanParams&, int shared_limit, cudaStream_t);
  void (*warpgroup_gradients)(const decay::ReverseScanParams&, cudaStream_t);
  void (*channel_reverse_scan)(const decay::ReverseScanParams&, cudaStream_t);
  void (*channel_gradients)(const decay::ChannelGradientsParams&, cudaStream_t);
  void (*state_scan)(const decay::StateScanParams&, cudaStream_t);
  void (*channel_state_scan)(const decay::StateScanParams&, cudaStream_t);
};
#define HL_DECAY_INSTANCE(K, V)           \
  {K,                                     \
   V,                                     \
   decay::LaunchChunkScan<K, V>,          \
   decay::LaunchWarpgroupScan<K>,         \
   decay::LaunchChannelOperands<K>,       \
   decay::LaunchChannelScan<K, V>,        \
   decay::LaunchReverseScan<K, V>,        \
   decay::LaunchWarpgroupGradients<K, V>, \
   decay::LaunchChannelReverseScan<K, V>, \
   decay::LaunchChannelGradients<K>,      \
   decay::LaunchStateScan<K, V>,          \
   decay::LaunchChannelStateScan<K, V>},
constexpr Instance kInstances[] = {
#define HL_DECAY_INSTANCE_64(V) HL_DECAY_INSTANCE(64, V)
#define HL_DECAY_INSTANCE_128(V) HL_DECAY_INSTANCE(128, V)
#include "kernels/decay_attention/cuda/instances/instances.inc"
};
#undef HL_DECAY_INSTANCE

constexpr int kOnesBlock = 64;  // columns

// The normaliser's scan uses blocks with the same width in K and kOnesBlock columns, which a plan
// does not name.
constexpr bool HaveBlocksOfOnes() {
  for (const Instance& instance : kInstances) {
    bool found = false;
    for (const Instance& ones : kInstances)
      found = found || (ones.k == instance.k && ones.v == kOnesBlock);
    if (!found || instance.v < kOnesBlock) return false;  // no such block needs more shared memory
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

// The maximum of shared memory that a block may request.
int SharedMemoryLimit() {
#if HL_EMULATE
  // HL_EMU_SHARED_BYTES=166912 emulates an sm_80.
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

// ---- segments ----

void LaunchStates(const Scan& scan, const decay::StateScanParams& own, cudaStream_t stream) {
  const Instance& instance = InstanceOf(scan.block);
  (scan.per_channel() ? instance.channel_state_scan : instance.state_scan)(own, stream);
}
decay::StateScanParams StateScanOf(const Scan& scan, const TensorView* dout) {
  decay::StateScanParams own = {};
  own.args = scan.args;
  own.reverse = dout != nullptr;
  if (own.reverse) own.dout = *dout;
  own.row_scales = scan.row_scales;
  own.operands = scan.operands;
  own.shape = scan.Shape();
  own.checkpoint_every = scan.checkpoint_every;
  return own;
}

// Launches the segments' scans for their own states, and then the scan over segments, which
// converts these into the states before each segment (reverse: dL/dS after each). `over` contains
// the states that enter and leave the sequence.
const float* ScanSegments(const Scan& scan, const SegmentLayout& layout, const TensorView* dout,
                          decay::SegmentScanParams over, cudaStream_t stream) {
  const DecayAttentionArgs& args = scan.args;
  decay::StateScanParams own = StateScanOf(scan, dout);
  own.states = At<float>(args.workspace, layout.states);
  own.log_transition = At<float>(args.workspace, layout.log_transition);
  own.transition_unit = 1;
  LaunchStates(scan, own, stream);
  over.num_states = int64_t{1} * scan.turn.num_sequences * args.num_heads;
  over.num_segments = scan.num_segments;
  over.state_elements = args.head_dim_k * args.head_dim_v;
  over.transitions = scan.per_channel() ? args.head_dim_k : 1;
  over.reverse = own.reverse;
  over.states = own.states;
  over.log2_transition = own.log_transition;
  decay::LaunchSegmentScan(over, stream);
  return own.states;
}
// The part of [num_sequences, H, K, V] that belongs to the batch tile's sequences; null for null.
const float* StatesOfTurn(const Scan& scan, const void* states) {
  if (states == nullptr) return nullptr;
  return static_cast<const float*>(states) + int64_t{1} * scan.turn.first_sequence *
                                                 scan.args.num_heads * scan.args.head_dim_k *
                                                 scan.args.head_dim_v;
}
// Computes the state from which each segment starts; null if there is only one segment.
const float* SegmentStates(const Scan& scan, const SegmentLayout& layout, const TensorView* dout,
                           const void* initial_state, cudaStream_t stream) {
  if (scan.num_segments == 1) return nullptr;
  decay::SegmentScanParams over = {};
  over.initial_state = StatesOfTurn(scan, initial_state);
  return ScanSegments(scan, layout, dout, over, stream);
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

Scan ScanOf(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
            const Direction& direction) {
  Scan scan = {args,
               direction.turn,
               direction.block,
               direction.num_segments,
               plan.checkpoint_every,
               IsNormalised(args),
               plan.forward_warpgroups,
               plan.backward_warpgroups,
               {},
               {}};
  scan.args.norm_kind = NormKind::kNone;
  scan.args.batch = direction.turn.num_rows;
  return scan;
}
Scan ScanOfOnes(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                const Direction& direction, const NormaliserLayout& layout) {
  Scan scan =
      ScanOf(args, plan, {{direction.block.k, kOnesBlock}, direction.num_segments, direction.turn});
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

TensorView RowsOfTurn(TensorView view, const Turn& turn) {
  if (view.data != nullptr)
    view.data = static_cast<char*>(view.data) +
                turn.first_row * view.stride_b * (view.dtype == DType::kBF16 ? 2 : 4);
  return view;
}
DecayAttentionArgs ProblemOfTurn(const DecayAttentionArgs& args, const Turn& turn) {
  DecayAttentionArgs own = args;
  own.batch = turn.num_rows;
  own.num_sequences = turn.num_sequences;
  for (TensorView* view : {&own.q, &own.k, &own.v, &own.out}) *view = RowsOfTurn(*view, turn);
  if (args.norm_denom != nullptr)
    own.norm_denom = static_cast<float*>(args.norm_denom) +
                     int64_t{1} * turn.first_row * args.seq_len * args.num_heads;
  return own;
}

TensorView Partial(const DecayAttentionArgs& args, const Turn& turn, size_t offset, int dim,
                   int first) {
  const int64_t token = int64_t{1} * args.num_heads * dim, row = token * args.seq_len;
  const int64_t before = turn.first_row - int64_t{1} * first * turn.num_rows;
  return {BeforeTurn<float>(args.workspace, offset, before * row), row, token, dim, DType::kF32};
}

void MakeOperands(const Scan& scan, cudaStream_t stream) {
  if (!scan.per_channel() || scan.args.num_chunks == 0) return;
  InstanceOf(scan.block)
      .channel_operands({scan.args, scan.Shape(), scan.row_scales, scan.operands}, stream);
}

void Summarise(const Scan& scan, const SegmentLayout& layout, const TensorView* dout, void* state,
               float* log_transition, cudaStream_t stream) {
  MakeOperands(scan, stream);
  if (scan.num_segments > 1) {
    decay::SegmentScanParams over = {};
    over.final_state = static_cast<float*>(state);
    over.log_transition = log_transition;
    ScanSegments(scan, layout, dout, over, stream);
    return;
  }
  // the own state of a single segment is the summary
  decay::StateScanParams own = StateScanOf(scan, dout);
  own.states = static_cast<float*>(state);
  own.log_transition = log_transition;
  own.transition_unit = 0.693147180559945309f;
  LaunchStates(scan, own, stream);
}

// ---- forward ----

decay::KeySums KeySumsOf(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                         const ForwardLayout& forward, const Turn& turn, cudaStream_t stream) {
  const NormaliserLayout& layout = forward.normaliser;
  decay::KeySums sums = {};
  if (!IsNormalised(args)) return sums;
  sums.wanted = true;
  sums.divides = SlicesOf(args, plan.forward).keys == 1;
  sums.eps = sums.divides ? static_cast<float>(args.norm_eps) : 0.0f;
  sums.sums = static_cast<float*>(sums.divides ? args.norm_denom
                                               : Partial(args, turn, layout.sums, 1).data);
  Scan ones = ScanOfOnes(args, plan, ForwardOf(plan, turn), layout);
  ones.operands = At<char>(args.workspace, forward.operands);
  sums.final = static_cast<float*>(ones.args.final_state);
  sums.checkpoints = ones.args.checkpoints;
  if (ones.num_segments > 1) {
    decay::LaunchOne(At<bf16>(args.workspace, layout.one), stream);
    sums.initial = SegmentStates(ones, layout.segments, nullptr, ones.args.initial_state, stream);
  } else {
    sums.initial = StatesOfTurn(ones, ones.args.initial_state);
  }
  return sums;
}

void RunForward(const Scan& scan, const SegmentLayout& segments, const TensorView& out,
                const decay::KeySums& key_sums, cudaStream_t stream) {
  const Instance& instance = InstanceOf(scan.block);
  decay::ChunkScanParams params;
  params.args = scan.args;
  params.shape = scan.Shape();
  params.checkpoint_every = scan.checkpoint_every;
  params.splits_checkpoints = scan.splits_checkpoints;
  params.operands = scan.operands;
  params.segment_states = SegmentStates(scan, segments, nullptr, scan.args.initial_state, stream);
  params.out = out;
  params.key_sums = key_sums;
  const auto launch = scan.per_channel() ? instance.channel_scan
                      : scan.warpgroups  ? instance.warpgroup_scan
                                         : instance.chunk_scan;
  launch(params, stream);
}

// ---- backward ----

GradientPlaces PlacesOf(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                        const BackwardLayout& layout, const Turn& turn, int first) {
  const DecayAttentionArgs& args = grads.forward;
  const bool per_channel = IsPerChannel(args.decay_kind);
  const int K = args.head_dim_k, decay_dim = per_channel ? K : 1;
  const int first_part = first * SlicesOf(args, plan.backward).keys;
  const int first_decay = per_channel ? first : first_part;
  const auto place = [&](const TensorView& gradient, int heads, int slices, int dim, size_t offset,
                         int slice) {
    const bool whole = heads == args.num_heads && slices == 1;
    return whole || gradient.data == nullptr ? gradient : Partial(args, turn, offset, dim, slice);
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
    const DecaySums sums = DecaySumsOf(args, plan);
    places.dlambda =
        At<float>(args.workspace, layout.dlambda) + first_decay * sums.count(args.num_heads);
    if (sums.num_sequences > 1)
      places.dlambda += int64_t{1} * turn.first_sequence * args.num_heads * sums.pieces;
  }
  return places;
}

void RunBackward(const Scan& given, const DecayAttentionGradArgs& grads,
                 const BackwardLayout& layout, const GradientPlaces& places, cudaStream_t stream) {
  Scan scan = given;
  scan.operands = At<char>(scan.args.workspace, layout.operands);
  MakeOperands(scan, stream);
  const Instance& instance = InstanceOf(scan.block);
  decay::ReverseScanParams params;
  params.grads = grads;
  params.grads.forward = scan.args;
  params.row_scales = scan.row_scales;
  params.shape = scan.Shape();
  params.checkpoint_every = scan.checkpoint_every;
  params.splits_checkpoints = scan.splits_checkpoints;
  params.centre = scan.centre;
  params.group = At<char>(scan.args.workspace, layout.group);
  params.states = At<char>(scan.args.workspace, layout.states);
  params.adjoints = At<char>(scan.args.workspace, layout.adjoints);
  params.factors = At<char>(scan.args.workspace, layout.factors);
  params.dq = places.dq;
  params.dk = places.dk;
  params.dv = places.dv;
  params.dlog_decay = places.dlog_decay;
  params.dkey_scale = places.dkey_scale;
  params.dlambda = places.dlambda;
  params.operands = scan.operands;
  params.products = At<float>(scan.args.workspace, layout.products);
  params.num_tiles =
      decay::TilesOfTurn(scan.args, scan.turn.num_sequences, params.shape.num_key_slices);
  params.segment_states =
      SegmentStates(scan, layout.segments, &grads.dout, grads.dfinal_state, stream);
  if (scan.backward_warpgroups) {
    decay::LaunchChunkStates(params, stream);
    instance.warpgroup_gradients(params, stream);
  } else if (scan.per_channel()) {
    instance.channel_reverse_scan(params, stream);
    if (params.num_tiles == 0) return;
    instance.channel_gradients({params.grads, params.shape, params.row_scales, params.products,
                                params.num_tiles, params.shape.num_slices, places.dq, places.dk,
                                places.dlog_decay, places.dkey_scale, places.dlambda},
                               stream);
  } else {
    instance.reverse_scan(params, SharedMemoryLimit(), stream);
  }
}

Scan ReverseScanOf(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                   const Turn& turn) {
  Scan scan = ScanOf(args, plan, BackwardOf(plan, turn));
  if (IsNormalised(args)) scan.row_scales.divisors = static_cast<const float*>(args.norm_denom);
  return scan;
}
ReverseScanOfOnes MakeReverseScanOfOnes(const DecayAttentionArgs& args,
                                        const DecayAttentionPlan& plan,
                                        const NormaliserLayout& layout, const Turn& turn,
                                        cudaStream_t stream) {
  decay::LaunchOne(At<bf16>(args.workspace, layout.one), stream);
  ReverseScanOfOnes ones = {ScanOfOnes(args, plan, BackwardOf(plan, turn), layout),
                            {},
                            At<float>(args.workspace, layout.factor)};
  ones.dout = ones.scan.args.v;
  const int64_t before = int64_t{1} * turn.first_row * args.seq_len * args.num_heads;
  ones.scan.row_scales = {BeforeTurn<float>(args.workspace, layout.factor, before),
                          static_cast<const float*>(args.norm_denom)};
  return ones;
}

}  // namespace halflife::kernels::cuda
