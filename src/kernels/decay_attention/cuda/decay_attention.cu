// Dispatch of decay attention on CUDA: from a problem to the kernels that are compiled for it. Host
// code.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "core/error.h"
#include "kernels/cuda/device.h"
#include "kernels/decay_attention/call_checks.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/workspace.h"

namespace halflife::kernels::cuda {
namespace {

struct Instance {
  int head_dim_k, head_dim_v;
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

const Instance& InstanceFor(int head_dim_k, int head_dim_v) {
  const Instance* best = nullptr;
  std::string names;
  for (const Instance& instance : kInstances) {
    names += Concat(" (", instance.head_dim_k, ", ", instance.head_dim_v, ")");
    if (instance.head_dim_k < head_dim_k || instance.head_dim_v < head_dim_v) continue;
    if (best == nullptr ||
        instance.head_dim_k * instance.head_dim_v < best->head_dim_k * best->head_dim_v)
      best = &instance;
  }
  HL_CHECK_AS(ExitCode::kUsage, best != nullptr, "decay attention on tensor cores for head sizes (",
              head_dim_k, ", ", head_dim_v, ") is not compiled; (K, V) up to these are:", names);
  return *best;
}

// Columns of V a block of the forward owns.
int SliceWidth(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return args.head_dim_v <= 64 || plan.block_v == 64 ? 64 : 128;
}
decay::SegmentShape ForwardShape(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  const int width = SliceWidth(args, plan);
  return {std::max(plan.num_segments, 1), (args.head_dim_v + width - 1) / width};
}

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
              ", ", Name(args.v.dtype), "; bf16 and fp32 are compiled, one for all");
  HL_CHECK_AS(ExitCode::kUsage,
              args.head_dim_k >= 1 && args.head_dim_k <= kMaxHeadDim && args.head_dim_v >= 1,
              "decay attention on CUDA with head_dim_k ", args.head_dim_k, ", head_dim_v ",
              args.head_dim_v, "; head_dim_k of 1 to ", kMaxHeadDim, " is compiled");
  CheckPlanAndTable(args, plan, kPlanLimits, workspace_bytes);
  CheckConstantDecay(args.decay_kind, args.log_decay, args.num_decay_heads, args.head_dim_k);
  // Slices of V multiply by at most 9, with the normaliser.
  const int64_t blocks =
      int64_t{9} * args.num_sequences * args.num_heads * std::max(plan.num_segments, 1);
  HL_CHECK_AS(ExitCode::kUsage, blocks <= 0x7fffffff, "decay attention over ", args.num_sequences,
              " sequences of ", args.num_heads, " heads in ", plan.num_segments,
              " segments: more blocks than a launch takes");
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

void LaunchStates(const decay::StateScanParams& own, const DecayAttentionPlan& plan,
                  cudaStream_t stream) {
  const Instance& instance = InstanceFor(own.args.head_dim_k, SliceWidth(own.args, plan));
  const auto launch =
      IsPerChannel(own.args.decay_kind) ? instance.channel_state_scan : instance.state_scan;
  launch(own, stream);
}

// Launches the scans of the segments for their own states and the scan over segments, which turns
// these into the states before each (reverse: dL/dS after each) and passes on what `scan` says.
const float* ScanSegments(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                          const SegmentLayout& layout, const TensorView* dout,
                          decay::SegmentScanParams scan, cudaStream_t stream) {
  decay::StateScanParams own;
  own.args = args;
  own.reverse = dout != nullptr;
  if (own.reverse) own.dout = *dout;
  own.shape = ForwardShape(args, plan);
  own.checkpoint_every = plan.checkpoint_every;
  own.states = At<float>(args.workspace, layout.states);
  own.log_transition = At<float>(args.workspace, layout.log_transition);
  own.transition_unit = 1;
  LaunchStates(own, plan, stream);
  scan.num_states = int64_t{1} * args.num_sequences * args.num_heads;
  scan.num_segments = own.shape.num_segments;
  scan.state_elements = args.head_dim_k * args.head_dim_v;
  scan.transitions = IsPerChannel(args.decay_kind) ? args.head_dim_k : 1;
  scan.reverse = own.reverse;
  scan.states = own.states;
  scan.log2_transition = own.log_transition;
  decay::LaunchSegmentScan(scan, stream);
  return own.states;
}
const float* SegmentStates(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                           const SegmentLayout& layout, const TensorView* dout,
                           const void* initial_state, cudaStream_t stream) {
  decay::SegmentScanParams scan = {};
  scan.initial_state = static_cast<const float*>(initial_state);
  return ScanSegments(args, plan, layout, dout, scan, stream);
}

void ScanForward(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                 cudaStream_t stream) {
  const Instance& instance = InstanceFor(args.head_dim_k, SliceWidth(args, plan));
  decay::ChunkScanParams params;
  params.args = args;
  if (BackwardRoute(args) == Route::kSimt) params.args.checkpoints = nullptr;  // they have no room
  params.shape = ForwardShape(args, plan);
  params.checkpoint_every = plan.checkpoint_every;
  params.segment_states = nullptr;
  if (plan.num_segments > 1)
    params.segment_states = SegmentStates(args, plan, MakeForwardLayout(args, plan).segments,
                                          nullptr, args.initial_state, stream);
  (IsPerChannel(args.decay_kind) ? instance.channel_scan : instance.chunk_scan)(params, stream);
}

// A gradient of heads that may be shared: itself, or where it is shared [B, T, H, dim] fp32 in the
// workspace.
TensorView PartialOr(const TensorView& gradient, const DecayAttentionArgs& args, int heads, int dim,
                     size_t offset) {
  if (heads == args.num_heads) return gradient;
  const int64_t row = int64_t{1} * args.num_heads * dim;
  return {At<float>(args.workspace, offset), row * args.seq_len, row, dim, DType::kF32};
}
void SumSharedHeads(const DecayAttentionArgs& args, const TensorView& gradient, int heads, int dim,
                    size_t offset, int num_slices, cudaStream_t stream) {
  if (gradient.data == nullptr) return;
  decay::LaunchReduceHeads({At<float>(args.workspace, offset), gradient, num_slices, args.batch,
                            args.seq_len, args.num_heads, heads, dim},
                           stream);
}

void ScanBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                  cudaStream_t stream) {
  const DecayAttentionArgs& args = grads.forward;
  HL_CHECK(args.num_chunks == 0 || args.checkpoints != nullptr,
           "backward of decay attention: the forward left no checkpoints");
  const BackwardLayout layout = MakeBackwardLayout(args, plan);
  const bool wants_decay = grads.dlog_decay.data != nullptr;
  const bool per_token = IsPerToken(args.decay_kind);
  const int decay_dim = IsPerChannel(args.decay_kind) ? args.head_dim_k : 1;
  const Instance& instance = InstanceFor(args.head_dim_k, args.head_dim_v);
  decay::ReverseScanParams params;
  params.grads = grads;
  params.shape = {std::max(plan.num_segments, 1), 1};
  params.checkpoint_every = plan.checkpoint_every;
  params.segment_states = nullptr;
  params.group = At<char>(args.workspace, layout.group);
  params.dq = PartialOr(grads.dq, args, args.num_q_heads, args.head_dim_k, layout.dq);
  params.dk = PartialOr(grads.dk, args, args.num_k_heads, args.head_dim_k, layout.dk);
  params.dv = PartialOr(grads.dv, args, args.num_v_heads, args.head_dim_v, layout.dv);
  if (wants_decay && per_token)
    params.dlog_decay =
        PartialOr(grads.dlog_decay, args, args.num_decay_heads, decay_dim, layout.dlog_decay);
  params.dlambda = wants_decay && !per_token ? At<float>(args.workspace, layout.dlambda) : nullptr;
  if (plan.num_segments > 1) {
    // Blocks of the reverse scan own all columns of V, as does this.
    DecayAttentionPlan whole = plan;
    whole.block_v = 0;
    params.segment_states =
        SegmentStates(args, whole, layout.segments, &grads.dout, grads.dfinal_state, stream);
  }
  if (IsPerChannel(args.decay_kind)) {
    instance.channel_reverse_scan(params, stream);
  } else {
    instance.reverse_scan(params, SharedMemoryLimit(), stream);
  }
  const auto sum = [&](const TensorView& gradient, int heads, int dim, size_t offset) {
    if (heads < args.num_heads) SumSharedHeads(args, gradient, heads, dim, offset, 1, stream);
  };
  sum(grads.dq, args.num_q_heads, args.head_dim_k, layout.dq);
  sum(grads.dk, args.num_k_heads, args.head_dim_k, layout.dk);
  sum(grads.dv, args.num_v_heads, args.head_dim_v, layout.dv);
  if (wants_decay && per_token)
    sum(grads.dlog_decay, args.num_decay_heads, decay_dim, layout.dlog_decay);
  if (params.dlambda != nullptr)
    decay::LaunchReduceConstant(
        {params.dlambda, static_cast<float*>(grads.dlog_decay.data), args.num_sequences,
         params.shape.num_segments, args.num_heads, args.num_decay_heads, decay_dim},
        stream);
}

// ---- token by token ----

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

// dL/d(sum of keys), [B, T, H], into `dnorm`; null without the normaliser.
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

void SimtBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                  cudaStream_t stream) {
  const DecayAttentionArgs& args = grads.forward;
  const BackwardLayout layout = MakeBackwardLayout(args, plan);
  const bool per_token = IsPerToken(args.decay_kind);
  const bool wants_decay = grads.dlog_decay.data != nullptr;
  const int slices = decay::SimtSlices(args, decay::SimtMode::kStates);
  decay::SimtScanParams forward = {};
  forward.args = args;
  forward.args.final_state = nullptr;
  forward.args.final_norm = nullptr;
  forward.mode = decay::SimtMode::kStates;
  forward.states = At<float>(args.workspace, layout.simt_states);
  SimtScan(forward, stream);

  decay::SimtReverseScanParams params = {};
  params.grads = grads;
  params.states = forward.states;
  params.dnorm = NormGradient(grads, At<float>(args.workspace, layout.dnorm), stream);
  params.dq = At<float>(args.workspace, layout.dq);
  params.dk = At<float>(args.workspace, layout.dk);
  params.dv = At<float>(args.workspace, layout.dv);
  if (wants_decay && per_token) params.dlog_decay = At<float>(args.workspace, layout.dlog_decay);
  if (wants_decay && !per_token) params.dlambda = At<float>(args.workspace, layout.dlambda);
  if (grads.dkey_scale.data != nullptr)
    params.dkey_scale = At<float>(args.workspace, layout.dkey_scale);
  SimtReverseScan(params, stream);

  const int decay_dim = IsPerChannel(args.decay_kind) ? args.head_dim_k : 1;
  SumSharedHeads(args, grads.dq, args.num_q_heads, args.head_dim_k, layout.dq, slices, stream);
  SumSharedHeads(args, grads.dk, args.num_k_heads, args.head_dim_k, layout.dk, slices, stream);
  SumSharedHeads(args, grads.dv, args.num_v_heads, args.head_dim_v, layout.dv, 1, stream);
  SumSharedHeads(args, grads.dkey_scale, args.num_heads, 1, layout.dkey_scale, slices, stream);
  if (params.dlog_decay != nullptr)
    SumSharedHeads(args, grads.dlog_decay, args.num_decay_heads, decay_dim, layout.dlog_decay,
                   slices, stream);
  if (params.dlambda != nullptr)
    decay::LaunchReduceConstant(
        {params.dlambda, static_cast<float*>(grads.dlog_decay.data), args.num_sequences, slices,
         args.num_heads, args.num_decay_heads, decay_dim},
        stream);
}

// ---- summaries of a segment, for the ranks that hold the others ----

void SummariseSegments(const DecaySegmentArgs& args, const DecayAttentionPlan& plan,
                       const SegmentLayout& layout, const TensorView* dout, float* log_transition,
                       cudaStream_t stream) {
  const DecayAttentionArgs& forward = args.forward;
  if (plan.num_segments > 1) {
    decay::SegmentScanParams scan = {};
    scan.final_state = static_cast<float*>(args.state);
    scan.log_transition = log_transition;
    ScanSegments(forward, plan, layout, dout, scan, stream);
    return;
  }
  decay::StateScanParams own = {};  // one segment's own state is the summary
  own.args = forward;
  own.reverse = dout != nullptr;
  if (own.reverse) own.dout = *dout;
  own.shape = ForwardShape(forward, plan);
  own.checkpoint_every = plan.checkpoint_every;
  own.states = static_cast<float*>(args.state);
  own.log_transition = log_transition;
  own.transition_unit = 0.693147180559945309f;
  LaunchStates(own, plan, stream);
}

}  // namespace

void Forward(const DecayAttentionArgs& args, const DecayAttentionPlan& plan, cudaStream_t stream) {
  if (!HasWork(args)) return;
  CheckPlan(args, plan, cuda::ForwardWorkspaceBytes(args, plan));
  CheckForwardTensors(args);
  switch (ForwardRoute(args)) {
    case Route::kTensorCores:
    case Route::kChannelScan:
      return ScanForward(args, plan, stream);
    case Route::kSimt:
      return SimtForward(args, stream);
  }
}

void Backward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
              cudaStream_t stream) {
  if (!HasWork(grads.forward)) return;
  CheckPlan(grads.forward, plan, cuda::BackwardWorkspaceBytes(grads.forward, plan));
  CheckGradientTensors(grads);
  CheckConstantDecay(grads.forward.decay_kind, grads.dlog_decay, grads.forward.num_decay_heads,
                     grads.forward.head_dim_k);
  if (BackwardRoute(grads.forward) == Route::kSimt) {
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
  CheckPlan(forward, plan, cuda::ForwardWorkspaceBytes(forward, plan));
  CheckSummary(args, /*reverse=*/false);
  float* const log_transition = static_cast<float*>(args.log_transition);
  if (ForwardRoute(forward) == Route::kSimt) {
    decay::SimtScanParams params = {};
    params.args = forward;
    params.args.final_state = args.state;
    params.args.final_norm = args.norm;
    params.mode = decay::SimtMode::kSummary;
    params.log_transition = log_transition;
    SimtScan(params, stream);
    return;
  }
  SummariseSegments(args, plan, MakeForwardLayout(forward, plan).segments, nullptr, log_transition,
                    stream);
}

void BackwardSummarise(const DecaySegmentArgs& args, const DecayAttentionPlan& plan,
                       cudaStream_t stream) {
  const DecayAttentionArgs& forward = args.forward;
  if (!HasWork(forward)) return;
  CheckPlan(forward, plan, cuda::BackwardWorkspaceBytes(forward, plan));
  CheckSummary(args, /*reverse=*/true);
  if (BackwardRoute(forward) == Route::kSimt) {
    decay::SimtReverseScanParams params = {};
    params.grads.forward = forward;
    params.grads.dout = args.dout;
    params.grads.dinitial_state = args.state;
    params.grads.dinitial_norm = args.norm;
    params.dnorm =
        NormGradient(params.grads,
                     At<float>(forward.workspace, MakeBackwardLayout(forward, plan).dnorm), stream);
    params.summary = true;
    SimtReverseScan(params, stream);
    return;
  }
  SummariseSegments(args, plan, MakeBackwardLayout(forward, plan).segments, &args.dout, nullptr,
                    stream);
}

}  // namespace halflife::kernels::cuda
