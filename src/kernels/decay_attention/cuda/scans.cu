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
#include "core/error.h"
#include "kernels/cuda/device.h"
#include "kernels/decay_attention/cuda/centred_backward.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/cuda/normaliser.h"
#include "kernels/decay_attention/cuda/one_scan.h"
#include "kernels/decay_attention/cuda/scans.h"
#include "kernels/decay_attention/cuda/workspace.h"

namespace halflife::kernels::cuda {
namespace {

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
