#include "ops/delta_rule/delta_rule_internal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "kernels/delta_rule/delta_rule_args.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/host_waits.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

constexpr const char* kDeltaKernel = "delta rule";

kernels::TensorView DeltaView(const at::Tensor& x) { return ViewOf(kDeltaKernel, x); }

// The arguments of one call, together with the tensors that `args` points into.
struct DeltaCall {
  DeltaRuleInputs inputs;
  kernels::DeltaRuleArgs args;

  at::Tensor Empty(at::IntArrayRef sizes) const {
    return at::empty(sizes, inputs.q.options().dtype(ComputeType(inputs.q)));
  }
  at::Tensor EmptyState() const {
    return Empty({args.num_sequences, args.num_value_heads, args.head_dim_k, args.head_dim_v});
  }
  at::Tensor Bytes(size_t bytes) const {
    return at::empty({static_cast<int64_t>(bytes)}, inputs.q.options().dtype(at::kByte));
  }
};

kernels::DeltaDecay DecayOf(const at::Tensor& log_decay, int64_t dim_per_channel) {
  if (!log_decay.defined()) return kernels::DeltaDecay::kNone;
  return log_decay.dim() == dim_per_channel ? kernels::DeltaDecay::kPerTokenChannel
                                            : kernels::DeltaDecay::kPerToken;
}

// Sets what the kernels may use on the device of x. HALFLIFE_WARPGROUPS can disable Hopper's
// instructions.
void SetLimits([[maybe_unused]] const at::Tensor& x,
               [[maybe_unused]] kernels::DeltaRuleArgs& args) {
#ifdef HALFLIFE_WITH_CUDA
  if (!x.is_cuda()) return;
  const kernels::DeviceLimits limits = LimitsOfGpu(x.get_device());
  args.warpgroups = limits.warpgroups;
  args.shared_memory_bytes = limits.shared_memory_bytes;
#endif
}

DeltaCall MakeDeltaCall(const DeltaRuleInputs& given, double scale) {
  CheckCounts(kDeltaKernel, {given.q, given.v});
  DeltaCall call = {.inputs = given, .args = {}};
  DeltaRuleInputs& in = call.inputs;
  in.q = Rows(in.q), in.k = Rows(in.k), in.v = Rows(in.v), in.log_decay = Rows(in.log_decay);
  if (in.initial_state.defined())
    in.initial_state = in.initial_state.to(ComputeType(in.q)).contiguous();
  if (in.chunks == nullptr)
    in.chunks = MakeSequenceChunks(
        {.batch = in.q.size(0), .seq_len = in.q.size(1), .chunk_size = kernels::kDeltaChunkSize},
        in.q.device());
  kernels::DeltaRuleArgs& args = call.args;
  args.batch = static_cast<int>(in.q.size(0));
  args.seq_len = static_cast<int>(in.q.size(1));
  args.num_heads = static_cast<int>(in.q.size(2));
  args.num_value_heads = static_cast<int>(in.v.size(2));
  args.head_dim_k = static_cast<int>(in.q.size(3));
  args.head_dim_v = static_cast<int>(in.v.size(3));
  args.decay = DecayOf(in.log_decay, /*dim_per_channel=*/4);
  args.scale = scale;
  SetLimits(in.q, args);
  args.q = DeltaView(in.q), args.k = DeltaView(in.k), args.v = DeltaView(in.v);
  args.out = {.dtype = args.v.dtype};
  args.beta = DeltaView(in.beta);
  if (in.log_decay.defined()) args.log_decay = DeltaView(in.log_decay);
  args.num_sequences = in.chunks->num_sequences();
  args.num_chunks = in.chunks->num_chunks();
  args.chunks = in.chunks->chunks();
  args.sequence_begin = in.chunks->sequence_begin();
  args.initial_state = DataOrNull(in.initial_state);
  kernels::CheckDeltaRuleShape(args);
  return call;
}

struct DeltaRuleOp {
  struct Inputs {
    at::Tensor q, k, v, log_decay, beta, initial_state;
  };
  struct Outputs {
    at::Tensor out, final_state;
  };
  struct Saved {
    Inputs inputs;
    at::Tensor checkpoints;  // bytes, in the kernels' own layout
  };
};

// The data other than tensors that a backward needs.
struct DeltaBackwardPlan {
  std::shared_ptr<const SequenceChunks> chunks;
  double scale;

  DeltaRuleOp::Inputs operator()(const BackwardOf<DeltaRuleOp>& backward) const {
    const DeltaRuleOp::Inputs& given = backward.saved.inputs;
    DeltaCall call = MakeDeltaCall({.q = given.q,
                                    .k = given.k,
                                    .v = given.v,
                                    .log_decay = given.log_decay,
                                    .beta = given.beta,
                                    .chunks = chunks,
                                    .initial_state = given.initial_state},
                                   scale);
    const DeltaRuleInputs& in = call.inputs;
    const auto empty_like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
    const auto if_wanted = [&](const at::Tensor& x, at::Tensor DeltaRuleOp::Inputs::*field) {
      return backward.Wants(field) ? empty_like(x) : at::Tensor();
    };
    DeltaRuleOp::Inputs grads = {
        .q = empty_like(in.q),
        .k = empty_like(in.k),
        .v = empty_like(in.v),
        .log_decay = if_wanted(in.log_decay, &DeltaRuleOp::Inputs::log_decay),
        .beta = if_wanted(in.beta, &DeltaRuleOp::Inputs::beta),
        .initial_state = if_wanted(in.initial_state, &DeltaRuleOp::Inputs::initial_state)};
    const at::Tensor dout = backward.grads.out.defined() ? Rows(backward.grads.out)
                                                         : at::zeros(in.v.sizes(), in.v.options());
    const at::Tensor dfinal_state = Contiguous(backward.grads.final_state);
    kernels::DeltaRuleGradArgs args = {.forward = call.args,
                                       .dout = DeltaView(dout),
                                       .dq = DeltaView(grads.q),
                                       .dk = DeltaView(grads.k),
                                       .dv = DeltaView(grads.v),
                                       .dlog_decay = {},
                                       .dbeta = {},
                                       .dfinal_state = DataOrNull(dfinal_state),
                                       .dinitial_state = MutableDataOrNull(grads.initial_state)};
    if (grads.log_decay.defined()) args.dlog_decay = DeltaView(grads.log_decay);
    if (grads.beta.defined()) args.dbeta = DeltaView(grads.beta);
    args.forward.checkpoints = backward.saved.checkpoints.data_ptr();
    RunOn(
        in.q,
        [&] {
          const at::Tensor workspace = call.Bytes(kernels::DeltaRuleWorkspaceBytes(call.args));
          args.forward.workspace = workspace.data_ptr();
          kernels::cpu::DeltaRuleBackward(args);
        },
        [&](auto stream) {
          const at::Tensor workspace = call.Bytes(kernels::cuda::DeltaRuleBackwardBytes(call.args));
          args.forward.workspace = workspace.data_ptr();
          kernels::cuda::DeltaRuleBackward(args, stream);
        });
    return grads;
  }
};

}  // namespace

bool HasDeltaRuleKernels(const DeltaRuleInputs& inputs) {
  const at::Tensor& q = inputs.q;
  if (inputs.chunks != nullptr && inputs.chunks->chunk_size > kernels::kDeltaChunkSize)
    return false;
  if (!RunsOnCuda(q))
    return q.is_cpu() && q.size(3) <= kernels::kDeltaMaxHeadDimK &&
           inputs.v.size(3) <= kernels::kDeltaMaxHeadDimV;
  if ((q.is_cuda() && !kHasCudaKernels) || !HasFusedDtype(q)) return false;
  kernels::DeltaRuleArgs args;
  SetLimits(q, args);
  args.q.dtype = ToDType(kDeltaKernel, q);
  args.head_dim_k = static_cast<int>(q.size(3));
  args.head_dim_v = static_cast<int>(inputs.v.size(3));
  args.decay = DecayOf(inputs.log_decay, /*dim_per_channel=*/4);
  const DeltaRuleOp::Inputs given = {.q = q,
                                     .k = inputs.k,
                                     .v = inputs.v,
                                     .log_decay = inputs.log_decay,
                                     .beta = inputs.beta,
                                     .initial_state = inputs.initial_state};
  return WillBeDifferentiated(given) ? kernels::cuda::SupportsDeltaRuleBackward(args)
                                     : kernels::cuda::SupportsDeltaRule(args);
}

DeltaRuleOutput KernelDeltaRule(const DeltaRuleInputs& inputs, double scale) {
  const DeltaRuleOp::Inputs given = {
      .q = inputs.q,
      .k = inputs.k,
      .v = inputs.v,
      .log_decay = inputs.log_decay,
      .beta = inputs.beta,
      .initial_state = inputs.initial_state.defined()
                           ? inputs.initial_state.to(ComputeType(inputs.q))
                           : at::Tensor()};
  const bool differentiated = WillBeDifferentiated(given);
  const auto forward = [&]() -> ForwardOf<DeltaRuleOp> {
    DeltaCall call = MakeDeltaCall(inputs, scale);
    const DeltaRuleInputs& in = call.inputs;
    const at::Tensor out = at::empty(inputs.v.sizes(), inputs.v.options());
    const at::Tensor final_state = call.EmptyState();
    at::Tensor checkpoints;
    if (differentiated) checkpoints = call.Bytes(kernels::DeltaRuleCheckpointBytes(call.args));
    call.args.out = DeltaView(out);
    call.args.final_state = final_state.mutable_data_ptr();
    call.args.checkpoints = MutableDataOrNull(checkpoints);
    RunOn(
        in.q, [&] { kernels::cpu::DeltaRuleForward(call.args); },
        [&](auto stream) {
          const at::Tensor workspace = call.Bytes(kernels::cuda::DeltaRuleForwardBytes(call.args));
          call.args.workspace = workspace.data_ptr();
          kernels::cuda::DeltaRuleForward(call.args, stream);
        });
    return {.outputs = {.out = out, .final_state = final_state},
            .saved = {.inputs = given, .checkpoints = checkpoints},
            .backward = DeltaBackwardPlan{.chunks = call.inputs.chunks, .scale = scale}};
  };
  const auto [out, final_state] = Apply<DeltaRuleOp>(
      {.name = "DeltaRule", .inputs = given, .undefined_grads = true, .forward = forward});
  return {.out = out, .final_state = final_state};
}

DeltaRuleSummary KernelDeltaRuleSummary(const DeltaRuleInputs& inputs) {
  const DeltaCall call = MakeDeltaCall(inputs, /*scale=*/1);
  const kernels::DeltaRuleArgs& args = call.args;
  const DeltaRuleSummary summary = {
      .transition =
          call.Empty({args.num_sequences, args.num_value_heads, args.head_dim_k, args.head_dim_k}),
      .state = call.EmptyState()};
  kernels::DeltaSegmentArgs segment = {.forward = args,
                                       .dout = {},
                                       .transition = summary.transition.mutable_data_ptr(),
                                       .state = summary.state.mutable_data_ptr()};
  RunOn(
      call.inputs.q, [&] { kernels::cpu::DeltaRuleSummarise(segment); },
      [&](auto stream) {
        const at::Tensor workspace = call.Bytes(kernels::cuda::DeltaRuleSummaryBytes(args));
        segment.forward.workspace = workspace.data_ptr();
        kernels::cuda::DeltaRuleSummarise(segment, stream);
      });
  return summary;
}

at::Tensor KernelDeltaRuleAdjoint(const DeltaRuleInputs& inputs, double scale,
                                  const at::Tensor& dout) {
  const DeltaCall call = MakeDeltaCall(inputs, scale);
  const at::Tensor rows = Rows(dout);
  const at::Tensor adjoint = call.EmptyState();
  kernels::DeltaSegmentArgs segment = {
      .forward = call.args, .dout = DeltaView(rows), .adjoint = adjoint.mutable_data_ptr()};
  RunOn(
      call.inputs.q, [&] { kernels::cpu::DeltaRuleBackwardSummarise(segment); },
      [&](auto stream) {
        const at::Tensor workspace = call.Bytes(kernels::cuda::DeltaRuleAdjointBytes(call.args));
        segment.forward.workspace = workspace.data_ptr();
        kernels::cuda::DeltaRuleBackwardSummarise(segment, stream);
      });
  return adjoint;
}

bool HasDeltaRuleStepKernel(const DeltaRuleStepInputs& inputs) {
  const at::Tensor& q = inputs.q;
  const bool has_device =
      RunsOnCuda(q) ? (kHasCudaKernels || !q.is_cuda()) && HasFusedDtype(q) : q.is_cpu();
  return has_device && q.size(2) <= kernels::kDeltaMaxHeadDimK &&
         inputs.v.size(2) <= kernels::kDeltaMaxHeadDimV;
}

at::Tensor KernelDeltaRuleStep(const DeltaRuleStepInputs& inputs, double scale, at::Tensor& state) {
  const auto view = [](const at::Tensor& x) { return TokenViewOf(kDeltaKernel, x); };
  CheckCounts(kDeltaKernel, {inputs.q, inputs.v});
  const at::Tensor q = Rows(inputs.q), k = Rows(inputs.k), v = Rows(inputs.v),
                   log_decay = Rows(inputs.log_decay);
  const at::Tensor out = at::empty(v.sizes(), v.options());
  kernels::DeltaRuleStepArgs args = {.batch = static_cast<int>(q.size(0)),
                                     .num_heads = static_cast<int>(q.size(1)),
                                     .num_value_heads = static_cast<int>(v.size(1)),
                                     .head_dim_k = static_cast<int>(q.size(2)),
                                     .head_dim_v = static_cast<int>(v.size(2)),
                                     .decay = DecayOf(log_decay, /*dim_per_channel=*/3),
                                     .scale = scale,
                                     .q = view(q),
                                     .k = view(k),
                                     .v = view(v),
                                     .out = view(out),
                                     .log_decay = {},
                                     .beta = view(inputs.beta),
                                     .state = state.mutable_data_ptr()};
  if (log_decay.defined()) args.log_decay = view(log_decay);
  RunOn(
      q, [&] { kernels::cpu::DeltaRuleStep(args); },
      [&](auto stream) { kernels::cuda::DeltaRuleStep(args, stream); });
  return out;
}

}  // namespace halflife::ops
