// Dispatch of decay attention on CUDA: from a problem to the kernels that are compiled for it. Host
// code.
#include <algorithm>
#include <limits>

#include "core/error.h"
#include "kernels/cuda/device.h"
#include "kernels/decay_attention/call_checks.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/scans.h"
#include "kernels/decay_attention/cuda/workspace.h"

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
              ", ", Name(args.v.dtype), "; bf16 and fp32 are compiled, one for all");
  HL_CHECK_AS(ExitCode::kUsage,
              args.head_dim_k >= 1 && args.head_dim_k <= kMaxHeadDimK && args.head_dim_v >= 1 &&
                  args.head_dim_v <= kMaxHeadDimV,
              "decay attention on CUDA with head_dim_k ", args.head_dim_k, ", head_dim_v ",
              args.head_dim_v, "; K of 1 to ", kMaxHeadDimK, " and V of 1 to ", kMaxHeadDimV,
              " are compiled");
  CheckPlanAndTable(args, plan, kPlanLimits, workspace_bytes);
  CheckConstantDecay(args.decay_kind, args.log_decay, args.num_decay_heads, args.head_dim_k);
  CheckBlocks(args, plan);
  // Slices of K and V multiply by at most that.
  constexpr int64_t kMaxSlices = int64_t{kMaxHeadDimK / 64} * (kMaxHeadDimV / 64);
  const int segments = std::max({plan.num_segments, plan.backward_segments, 1});
  const int64_t blocks = kMaxSlices * args.num_sequences * args.num_heads * segments;
  HL_CHECK_AS(ExitCode::kUsage, blocks <= 0x7fffffff, "decay attention over ", args.num_sequences,
              " sequences of ", args.num_heads, " heads in ", segments,
              " segments: more blocks than a launch takes");
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

void SumSharedHeads(const DecayAttentionArgs& args, const TensorView& gradient, int heads, int dim,
                    size_t offset, int num_slices, cudaStream_t stream) {
  if (gradient.data == nullptr) return;
  decay::LaunchReduceHeads({At<float>(args.workspace, offset), gradient, num_slices, args.batch,
                            args.seq_len, args.num_heads, heads, dim},
                           stream);
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
    decay::LaunchReduceConstant({params.dlambda, static_cast<float*>(grads.dlog_decay.data),
                                 /*num_slices=*/1, args.num_sequences, /*num_segments=*/slices,
                                 args.num_heads, args.num_decay_heads, decay_dim},
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
