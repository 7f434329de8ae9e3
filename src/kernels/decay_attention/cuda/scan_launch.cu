// One scan of decay attention: selects the compiled instance for its blocks, and sets up its
// segments and its gradient outputs. Host code.
#include "kernels/decay_attention/cuda/scan_launch.h"

#include <cstdlib>
#include <string>

#include "core/error.h"
#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/normaliser.h"

namespace halflife::kernels::cuda {
namespace {

using LaunchScan = void (*)(const decay::ChunkScanParams&, cudaStream_t);
using LaunchGradients = void (*)(const decay::ReverseScanParams&, cudaStream_t);

struct Instance {
  int k, v;   // owned by a block
  int terms;  // NumTerms()
  LaunchScan chunk_scan;
  void (*channel_operands)(const decay::ChannelOperandsParams&, cudaStream_t);
  LaunchScan channel_scan;
  void (*reverse_scan)(const decay::ReverseScanParams&, int shared_limit, cudaStream_t);
  LaunchGradients channel_reverse_scan;
  void (*channel_gradients)(const decay::ChannelGradientsParams&, cudaStream_t);
  void (*state_scan)(const decay::StateScanParams&, cudaStream_t);
  void (*channel_state_scan)(const decay::StateScanParams&, cudaStream_t);
  // By warpgroups, only for bf16. Null: not compiled.
  LaunchScan warpgroup_scan;
  LaunchGradients warpgroup_gradients;
  // per-channel decays in chunks
  void (*chunk_operands)(const decay::ChannelOperandsParams&, cudaStream_t);
  LaunchScan channel_warpgroup_scan;
  LaunchGradients channel_chunk_gradients;
};
template <int kK, int kV, int kTerms>
constexpr Instance InstanceByWarps() {
  Instance instance = {};
  instance.k = kK;
  instance.v = kV;
  instance.terms = kTerms;
  instance.chunk_scan = decay::LaunchChunkScan<kK, kV, kTerms>;
  instance.channel_operands = decay::LaunchChannelOperands<kK, kTerms>;
  instance.channel_scan = decay::LaunchChannelScan<kK, kV, kTerms>;
  instance.reverse_scan = decay::LaunchReverseScan<kK, kV, kTerms>;
  instance.channel_reverse_scan = decay::LaunchChannelReverseScan<kK, kV, kTerms>;
  instance.channel_gradients = decay::LaunchChannelGradients<kK, kTerms>;
  instance.state_scan = decay::LaunchStateScan<kK, kV, kTerms>;
  instance.channel_state_scan = decay::LaunchChannelStateScan<kK, kV, kTerms>;
  return instance;
}
template <int kK, int kV>
constexpr Instance Bf16Instance() {
  Instance instance = InstanceByWarps<kK, kV, 1>();
  if constexpr (decay::HasFastWarpgroupScan(kK, kV))
    instance.warpgroup_scan = decay::LaunchWarpgroupScan<kK, kV>;
  instance.warpgroup_gradients = decay::LaunchWarpgroupGradients<kK, kV>;
  instance.chunk_operands = decay::LaunchChannelChunkOperands<kK>;
  instance.channel_warpgroup_scan = decay::LaunchChannelWarpgroupScan<kK, kV>;
  instance.channel_chunk_gradients = decay::LaunchChannelChunkGradients<kK>;
  return instance;
}
#define HL_DECAY_INSTANCE(K, V) Bf16Instance<K, V>(),
constexpr Instance kInstances[] = {
#include "kernels/decay_attention/cuda/instances/instances.inc"
    InstanceByWarps<decay::kTwoTermsBlock, decay::kTwoTermsBlock, 2>()};

constexpr int kNormaliserColumns = 64;  // columns

// Returns true if the blocks of the normaliser's scan are compiled: the same number of terms, the
// same width in K, and kNormaliserColumns columns, which a plan does not name.
constexpr bool HaveNormaliserBlocks() {
  for (const Instance& instance : kInstances) {
    bool found = false;
    for (const Instance& ones : kInstances)
      found = found || (ones.terms == instance.terms && ones.k == instance.k &&
                        ones.v == kNormaliserColumns);
    if (!found || instance.v < kNormaliserColumns)
      return false;  // no such block needs more shared memory
  }
  return true;
}
static_assert(HaveNormaliserBlocks());

const Instance& FindInstance(const DecayAttentionArgs& args, const DecayBlock& block) {
  std::string names;
  for (const Instance& instance : kInstances) {
    if (instance.terms != NumTerms(args)) continue;
    if (instance.k == block.k && instance.v == block.v) return instance;
    names += Concat(" (", instance.k, ", ", instance.v, ")");
  }
  HL_FAIL(ExitCode::kUsage, "decay attention in blocks of (", block.k, ", ", block.v,
          ") of (K, V) is not compiled. Use one of:", names);
}

// Returns the maximum of shared memory that a block may request.
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
  if (scan.state_warpgroups || scan.by_chunks()) {
    decay::LaunchSegmentStates(own, stream);
    return;
  }
  const Instance& instance = FindInstance(scan.args, scan.block);
  (scan.per_channel() ? instance.channel_state_scan : instance.state_scan)(own, stream);
}
decay::StateScanParams MakeStateScanParams(const Scan& scan, const SegmentLayout& layout,
                                           const TensorView* dout) {
  decay::StateScanParams own = {};
  own.args = scan.args;
  own.reverse = dout != nullptr;
  if (own.reverse) own.dout = *dout;
  own.row_scales = scan.row_scales;
  own.operands = scan.operands;
  own.factors = At<char>(scan.args.workspace, layout.factors);
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
  decay::StateScanParams own = MakeStateScanParams(scan, layout, dout);
  own.states = At<float>(args.workspace, layout.states);
  own.log_transition = At<float>(args.workspace, layout.log_transition);
  own.transition_unit = 1;
  LaunchStates(scan, own, stream);
  over.num_states = int64_t{1} * scan.batch_tile.num_sequences * args.num_heads;
  over.num_segments = scan.num_segments;
  over.state_elements = args.head_dim_k * args.head_dim_v;
  over.transitions = scan.per_channel() ? args.head_dim_k : 1;
  over.reverse = own.reverse;
  over.states = own.states;
  over.log2_transition = own.log_transition;
  decay::LaunchSegmentScan(over, stream);
  return own.states;
}
// Returns the part of [num_sequences, H, K, V] that belongs to the batch tile's sequences; null for
// null.
const float* BatchTileStates(const Scan& scan, const void* states) {
  if (states == nullptr) return nullptr;
  return static_cast<const float*>(states) + int64_t{1} * scan.batch_tile.first_sequence *
                                                 scan.args.num_heads * scan.args.head_dim_k *
                                                 scan.args.head_dim_v;
}
// Computes the state from which each segment starts; null if there is only one segment.
const float* SegmentStates(const Scan& scan, const SegmentLayout& layout, const TensorView* dout,
                           const void* initial_state, cudaStream_t stream) {
  if (scan.num_segments == 1) return nullptr;
  decay::SegmentScanParams over = {};
  over.initial_state = BatchTileStates(scan, initial_state);
  return ScanSegments(scan, layout, dout, over, stream);
}

}  // namespace

void CheckBlocks(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  const int limit = SharedMemoryLimit();
  const auto check = [&](const char* what, const DecayBlock& block, int bytes) {
    HL_CHECK_AS(ExitCode::kUsage, bytes <= limit, "decay attention, ", what, " in blocks of ",
                block.k, " x ", block.v, ": ", bytes, " bytes of shared memory, but a block has ",
                limit, ". Make the plan for this device.");
  };
  if (ForwardRoute(args, plan) != Route::kSimt) {
    FindInstance(args, plan.forward);
    check("forward", plan.forward,
          ForwardSharedBytes(args.decay_kind, plan.forward, NumTerms(args)));
  }
  if (BackwardRoute(args, plan) != Route::kSimt) {
    FindInstance(args, plan.backward);
    check("backward", plan.backward,
          BackwardSharedBytes(args.decay_kind, plan.backward, NumTerms(args)));
  }
}

Scan MakeScan(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
              const Direction& direction) {
  Scan scan = {args,
               direction.batch_tile,
               direction.block,
               direction.num_segments,
               plan.checkpoint_every,
               IsNormalised(args) || NumTerms(args) == 2,
               plan.forward_warpgroups,
               plan.backward_warpgroups,
               StatesByWarpgroups(args, plan),
               {},
               {}};
  scan.args.norm_kind = NormKind::kNone;
  scan.args.batch = direction.batch_tile.num_rows;
  return scan;
}
Scan MakeNormaliserScan(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                        const Direction& direction, const NormaliserLayout& layout) {
  Scan scan = MakeScan(
      args, plan,
      {{direction.block.k, kNormaliserColumns}, direction.num_segments, direction.batch_tile});
  DecayAttentionArgs& ones = scan.args;
  ones.head_dim_v = 1;
  ones.num_v_heads = 1;
  ones.v = {At<char>(args.workspace, layout.one), 0, 0, 0, args.v.dtype};
  ones.initial_state = args.initial_norm;
  ones.final_state = args.final_norm;
  if (args.checkpoints != nullptr)
    ones.checkpoints = static_cast<char*>(args.checkpoints) + NormCheckpoints(args, plan);
  return scan;
}

TensorView BatchTileRows(TensorView view, const BatchTile& batch_tile) {
  if (view.data != nullptr)
    view.data = static_cast<char*>(view.data) +
                batch_tile.first_row * view.stride_b * (view.dtype == DType::kBF16 ? 2 : 4);
  return view;
}
DecayAttentionArgs BatchTileProblem(const DecayAttentionArgs& args, const BatchTile& batch_tile) {
  DecayAttentionArgs own = args;
  own.batch = batch_tile.num_rows;
  own.num_sequences = batch_tile.num_sequences;
  for (TensorView* view : {&own.q, &own.k, &own.v, &own.out})
    *view = BatchTileRows(*view, batch_tile);
  if (args.norm_denom != nullptr)
    own.norm_denom = static_cast<float*>(args.norm_denom) +
                     int64_t{1} * batch_tile.first_row * args.seq_len * args.num_heads;
  return own;
}

TensorView Partial(const DecayAttentionArgs& args, const BatchTile& batch_tile, size_t offset,
                   int dim, int first) {
  const int64_t token = int64_t{1} * args.num_heads * dim, row = token * args.seq_len;
  const int64_t before = batch_tile.first_row - int64_t{1} * first * batch_tile.num_rows;
  return {ShiftToBatchStart<float>(args.workspace, offset, before * row), row, token, dim,
          DType::kF32};
}

void MakeOperands(const Scan& scan, cudaStream_t stream) {
  if (!scan.per_channel() || scan.args.num_chunks == 0) return;
  const Instance& instance = FindInstance(scan.args, scan.block);
  (scan.by_chunks() ? instance.chunk_operands : instance.channel_operands)(
      {scan.args, scan.Shape(), scan.row_scales, scan.operands}, stream);
}

void MakeFactors(const Scan& scan, const SegmentLayout& layout, cudaStream_t stream) {
  decay::LaunchChunkFactors(
      {scan.args, scan.Shape(), scan.row_scales, At<char>(scan.args.workspace, layout.factors)},
      stream);
}

void Summarise(const Scan& given, const SegmentLayout& layout, const TensorView* dout, void* state,
               float* log_transition, cudaStream_t stream) {
  Scan scan = given.ByTiles();
  if (dout != nullptr && !CanReadByRows(scan.args, *dout)) scan.state_warpgroups = false;
  MakeOperands(scan, stream);
  if (scan.state_warpgroups) MakeFactors(scan, layout, stream);
  if (scan.num_segments > 1) {
    decay::SegmentScanParams over = {};
    over.final_state = static_cast<float*>(state);
    over.log_transition = log_transition;
    ScanSegments(scan, layout, dout, over, stream);
    return;
  }
  // the own state of a single segment is the summary
  decay::StateScanParams own = MakeStateScanParams(scan, layout, dout);
  own.states = static_cast<float*>(state);
  own.log_transition = log_transition;
  own.transition_unit = 0.693147180559945309f;
  LaunchStates(scan, own, stream);
}

// ---- forward ----

decay::KeySums PrepareKeySums(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                              const ForwardLayout& forward, const BatchTile& batch_tile,
                              cudaStream_t stream) {
  const NormaliserLayout& layout = forward.normaliser;
  decay::KeySums sums = {};
  if (!IsNormalised(args)) return sums;
  sums.wanted = true;
  sums.divides = SlicesOf(args, plan.forward).keys == 1;
  sums.eps = sums.divides ? static_cast<float>(args.norm_eps) : 0.0f;
  sums.sums = static_cast<float*>(sums.divides ? args.norm_denom
                                               : Partial(args, batch_tile, layout.sums, 1).data);
  Scan ones = MakeNormaliserScan(args, plan, ForwardDirection(plan, batch_tile), layout);
  ones.operands = At<char>(args.workspace, forward.operands);
  sums.final = static_cast<float*>(ones.args.final_state);
  sums.checkpoints = ones.args.checkpoints;
  if (ones.num_segments > 1) {
    decay::LaunchStoreOne(At<char>(args.workspace, layout.one), args.v.dtype, stream);
    sums.initial = SegmentStates(ones, layout.segments, nullptr, ones.args.initial_state, stream);
  } else {
    sums.initial = BatchTileStates(ones, ones.args.initial_state);
  }
  return sums;
}

void RunForward(const Scan& scan, const SegmentLayout& segments, const TensorView& out,
                const decay::KeySums& key_sums, cudaStream_t stream) {
  const Instance& instance = FindInstance(scan.args, scan.block);
  decay::ChunkScanParams params;
  params.args = scan.args;
  params.shape = scan.Shape();
  params.checkpoint_every = scan.checkpoint_every;
  params.splits_checkpoints = scan.splits_checkpoints;
  params.operands = scan.operands;
  if (scan.state_warpgroups && scan.num_segments > 1) MakeFactors(scan, segments, stream);
  params.segment_states = SegmentStates(scan, segments, nullptr, scan.args.initial_state, stream);
  params.out = out;
  params.key_sums = key_sums;
  const auto launch = scan.by_chunks()     ? instance.channel_warpgroup_scan
                      : scan.per_channel() ? instance.channel_scan
                      : scan.warpgroups    ? instance.warpgroup_scan
                                           : instance.chunk_scan;
  launch(params, stream);
}

// ---- backward ----

GradientOutputs MakeGradientOutputs(const DecayAttentionGradArgs& grads,
                                    const DecayAttentionPlan& plan, const BackwardLayout& layout,
                                    const BatchTile& batch_tile, int first) {
  const DecayAttentionArgs& args = grads.forward;
  const bool per_channel = IsPerChannel(args.decay_kind);
  const int K = args.head_dim_k, decay_dim = per_channel ? K : 1;
  const int first_part = first * SlicesOf(args, plan.backward).keys;
  const int first_decay = per_channel ? first : first_part;
  const auto output = [&](const TensorView& gradient, int heads, int slices, int dim, size_t offset,
                          int slice) {
    const bool whole = heads == args.num_heads && slices == 1;
    return whole || gradient.data == nullptr ? gradient
                                             : Partial(args, batch_tile, offset, dim, slice);
  };
  const GradientSlices& slices = layout.slices;
  GradientOutputs outputs = {};
  outputs.dq = output(grads.dq, args.num_q_heads, slices.keys, K, layout.dq, first);
  outputs.dk = output(grads.dk, args.num_k_heads, slices.keys, K, layout.dk, first);
  outputs.dv = output(grads.dv, args.num_v_heads, slices.values, args.head_dim_v, layout.dv, 0);
  outputs.dkey_scale =
      output(grads.dkey_scale, args.num_heads, slices.tokens, 1, layout.dkey_scale, first_part);
  if (grads.dlog_decay.data == nullptr) return outputs;
  if (IsPerToken(args.decay_kind)) {
    outputs.dlog_decay = output(grads.dlog_decay, args.num_decay_heads, slices.decays, decay_dim,
                                layout.dlog_decay, first_decay);
  } else {
    const DecaySums sums = DecaySumsOf(args, plan);
    outputs.dlambda =
        At<float>(args.workspace, layout.dlambda) + first_decay * sums.count(args.num_heads);
    if (sums.num_sequences > 1)
      outputs.dlambda += int64_t{1} * batch_tile.first_sequence * args.num_heads * sums.pieces;
  }
  return outputs;
}

void RunBackward(const Scan& given, const DecayAttentionGradArgs& grads,
                 const BackwardLayout& layout, const GradientOutputs& outputs,
                 cudaStream_t stream) {
  Scan scan = given;
  if (scan.per_channel()) scan.warpgroups = scan.backward_warpgroups;
  scan.operands = At<char>(scan.args.workspace, layout.operands);
  // grads.forward has all rows of the batch, scan.args those of a batch tile.
  if (!CanReadByRows(grads.forward, grads.dout)) scan.state_warpgroups = false;
  MakeOperands(scan, stream);
  if (!scan.per_channel() &&
      (scan.backward_warpgroups || (scan.state_warpgroups && scan.num_segments > 1)))
    MakeFactors(scan, layout.segments, stream);
  const Instance& instance = FindInstance(scan.args, scan.block);
  decay::ReverseScanParams params;
  params.grads = grads;
  params.grads.forward = scan.args;
  params.row_scales = scan.row_scales;
  params.shape = scan.Shape();
  params.checkpoint_every = scan.checkpoint_every;
  params.splits_checkpoints = scan.splits_checkpoints;
  params.value_mean = scan.value_mean;
  params.group = At<char>(scan.args.workspace, layout.group);
  params.states = At<char>(scan.args.workspace, layout.states);
  params.adjoints = At<char>(scan.args.workspace, layout.adjoints);
  params.factors = At<char>(scan.args.workspace, layout.segments.factors);
  params.dq = outputs.dq;
  params.dk = outputs.dk;
  params.dv = outputs.dv;
  params.dlog_decay = outputs.dlog_decay;
  params.dkey_scale = outputs.dkey_scale;
  params.dlambda = outputs.dlambda;
  params.operands = scan.operands;
  params.products = At<float>(scan.args.workspace, layout.products);
  params.num_tiles = decay::MaxTilesInBatchTile(scan.args, scan.batch_tile.num_sequences,
                                                params.shape.num_key_slices);
  params.segment_states =
      SegmentStates(scan, layout.segments, &grads.dout, grads.dfinal_state, stream);
  if (scan.backward_warpgroups) {
    decay::LaunchChunkStates(params, stream);
    (scan.per_channel() ? instance.channel_chunk_gradients : instance.warpgroup_gradients)(params,
                                                                                           stream);
  } else if (scan.per_channel()) {
    instance.channel_reverse_scan(params, stream);
    if (params.num_tiles == 0) return;
    instance.channel_gradients({params.grads, params.shape, params.row_scales, params.products,
                                params.num_tiles, params.shape.num_slices, outputs.dq, outputs.dk,
                                outputs.dlog_decay, outputs.dkey_scale, outputs.dlambda},
                               stream);
  } else {
    instance.reverse_scan(params, SharedMemoryLimit(), stream);
  }
}

Scan MakeReverseScan(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                     const BatchTile& batch_tile) {
  Scan scan = MakeScan(args, plan, BackwardDirection(plan, batch_tile));
  if (IsNormalised(args)) scan.row_scales.divisors = static_cast<const float*>(args.norm_denom);
  return scan;
}
ReverseNormaliserScan MakeReverseNormaliserScan(const DecayAttentionArgs& args,
                                                const DecayAttentionPlan& plan,
                                                const NormaliserLayout& layout,
                                                const BatchTile& batch_tile, cudaStream_t stream) {
  decay::LaunchStoreOne(At<char>(args.workspace, layout.one), args.v.dtype, stream);
  ReverseNormaliserScan ones = {
      MakeNormaliserScan(args, plan, BackwardDirection(plan, batch_tile), layout),
      {},
      At<float>(args.workspace, layout.factor)};
  ones.dout = ones.scan.args.v;
  const int64_t before = int64_t{1} * batch_tile.first_row * args.seq_len * args.num_heads;
  ones.scan.row_scales = {ShiftToBatchStart<float>(args.workspace, layout.factor, before),
                          static_cast<const float*>(args.norm_denom)};
  return ones;
}

}  // namespace halflife::kernels::cuda
