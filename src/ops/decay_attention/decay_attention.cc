#include "ops/decay_attention/decay_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "ops/decay_attention/decay_attention_internal.h"
#include "ops/decay_attention/plan_cache.h"
#include "ops/torch/autograd.h"
#include "ops/torch/gpu_route.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

using namespace binding;

// Accepts constant decays [H] and [H, K], and decays per token [B, T, H] and [B, T, H, K].
kernels::TensorView DecayViewOf(const at::Tensor& x) {
  kernels::TensorView view = {.data = x.data_ptr(), .dtype = ToDType(x)};
  if (x.dim() <= 2) {
    view.stride_h = x.stride(0);
  } else {
    view.stride_b = x.stride(0), view.stride_t = x.stride(1), view.stride_h = x.stride(2);
  }
  return view;
}

kernels::DecayKind KindOf(const at::Tensor& log_decay) {
  if (!log_decay.defined()) return kernels::DecayKind::kNone;
  constexpr kernels::DecayKind kByDims[] = {
      kernels::DecayKind::kPerHead, kernels::DecayKind::kPerHeadChannel,
      kernels::DecayKind::kPerToken, kernels::DecayKind::kPerTokenChannel};
  return kByDims[log_decay.dim() - 1];
}

void CheckKeyScale(const DecayAttentionInputs& in) {
  const std::vector<int64_t> want = {in.q.size(0), in.q.size(1), NumHeads(in)};
  HL_CHECK(!in.key_scale.defined() || FitsWith(in.q, in.key_scale, want), "key_scale ",
           Describe(in.key_scale), " does not fit q ", Describe(in.q), ". Use [B, T, H], which is ",
           at::IntArrayRef(want), ", on the same device.");
}

void CheckShapes(const DecayAttentionInputs& in) {
  const at::Tensor &q = in.q, &k = in.k, &v = in.v, &g = in.log_decay;
  HL_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "q ", q.sizes(), ", k ", k.sizes(), ", v ",
           v.sizes(), ". Use [B, T, heads, head_dim] for all.");
  HL_CHECK(q.is_cpu() || q.is_cuda(), "decay attention got q ", Describe(q),
           ". Use the CPU or CUDA: other devices have no kernels.");
  CheckCounts({q, k, v});
  const int64_t batch = q.size(0), seq_len = q.size(1), dim_k = q.size(3);
  const auto rows = [&](const at::Tensor& x) {
    return x.size(0) == batch && x.size(1) == seq_len && x.device() == q.device();
  };
  HL_CHECK(rows(k) && rows(v) && k.size(3) == dim_k, "q ", Describe(q), ", k ", Describe(k), ", v ",
           Describe(v), " do not match. Use the same B, T and device, and the same K for q and k.");
  if (g.defined()) {
    HL_CHECK(g.dim() >= 1 && g.dim() <= 4 && g.device() == q.device() && (g.dim() <= 2 || rows(g)),
             "log_decay ", Describe(g), " does not fit q ", Describe(q),
             ". Use [Hd], [Hd, K], [B, T, Hd] or [B, T, Hd, K] on the device of q.");
    HL_CHECK(g.dim() % 2 == 1 || g.size(-1) == dim_k, "log_decay ", g.sizes(),
             " per channel does not fit K ", dim_k);
  }
  HL_CHECK(in.chunks == nullptr || (in.chunks->batch == batch && in.chunks->seq_len == seq_len &&
                                    in.chunks->device == q.device()),
           "chunks were made for another batch or device. Make them for these inputs.");
  CheckKeyScale(in);
}

// The arguments of one call, together with the tensors that `args` points into: `inputs` keeps them
// alive.
struct DecayCall {
  DecayAttentionInputs inputs;
  kernels::DecayAttentionArgs args;
  kernels::DecayAttentionPlan plan;

  bool is_cuda() const { return inputs.q.is_cuda(); }
  at::ScalarType compute() const { return ComputeType(inputs.q); }
  at::Tensor Empty(at::IntArrayRef sizes) const {
    return at::empty(sizes, inputs.q.options().dtype(compute()));
  }
  bool normalised() const { return args.norm_kind == kernels::NormKind::kSumOfKeys; }
  std::vector<int64_t> NormSizes() const {
    return {args.num_sequences, args.num_heads, args.head_dim_k};
  }
  std::vector<int64_t> StateSizes() const {
    return {args.num_sequences, args.num_heads, args.head_dim_k, args.head_dim_v};
  }
  DecayState EmptyState() const {
    return {.kv = Empty(StateSizes()), .norm = normalised() ? Empty(NormSizes()) : at::Tensor()};
  }
  at::Tensor Bytes(size_t bytes) const {
    return at::empty({static_cast<int64_t>(bytes)}, inputs.q.options().dtype(at::kByte));
  }
};

kernels::DeviceLimits LimitsOf([[maybe_unused]] const at::Tensor& x) {
#ifdef HALFLIFE_WITH_CUDA
  if (x.is_cuda()) return LimitsOfGpu(x.get_device());
#endif
  return {};
}

// Converts a state, or a gradient of one, to the form that the kernels read. Undefined fields stay
// undefined.
DecayState StateRows(const DecayCall& call, const char* what, const DecayState& state,
                     const DecayAttentionConfig& config) {
  CheckStateFields(what, state, config);
  CheckStateShapes(what, state, call.inputs.q, call.StateSizes());
  const auto rows = [&](const at::Tensor& x) {
    return x.defined() ? x.to(call.compute()).contiguous() : x;
  };
  return {.kv = rows(state.kv), .norm = rows(state.norm)};
}
DecayCall MakeCall(const DecayAttentionInputs& given, const DecayAttentionConfig& config) {
  CheckShapes(given);
  DecayCall call = {.inputs = given, .args = {}, .plan = {}};
  DecayAttentionInputs& in = call.inputs;
  const at::ScalarType compute = ComputeType(in.q);
  in.q = Rows(in.q), in.k = Rows(in.k), in.v = Rows(in.v);
  if (in.log_decay.defined())
    in.log_decay = DecayRows(in.log_decay.to(compute), in.log_decay.dim() <= 2);
  if (in.key_scale.defined()) in.key_scale = in.key_scale.to(compute);
  if (in.chunks == nullptr)
    in.chunks = MakeSequenceChunks({.batch = in.q.size(0), .seq_len = in.q.size(1)}, in.q.device());

  kernels::DecayAttentionArgs& args = call.args;
  args.batch = static_cast<int>(in.q.size(0));
  args.seq_len = static_cast<int>(in.q.size(1));
  args.num_q_heads = static_cast<int>(in.q.size(2));
  args.num_k_heads = static_cast<int>(in.k.size(2));
  args.num_v_heads = static_cast<int>(in.v.size(2));
  args.num_decay_heads = static_cast<int>(NumDecayHeads(in.log_decay));
  args.num_heads = static_cast<int>(NumHeads(in));
  args.head_dim_k = static_cast<int>(in.q.size(3));
  args.head_dim_v = static_cast<int>(in.v.size(3));
  args.decay_kind = KindOf(in.log_decay);
  args.norm_kind = config.norm;
  args.norm_eps = config.norm_eps;
  args.scale = config.scale;
  args.q = ViewOf(in.q), args.k = ViewOf(in.k), args.v = ViewOf(in.v);
  args.out = {.dtype = args.v.dtype};
  if (in.log_decay.defined()) args.log_decay = DecayViewOf(in.log_decay);
  if (in.key_scale.defined()) args.key_scale = ViewOf(in.key_scale);
  args.num_sequences = in.chunks->num_sequences();
  args.num_chunks = in.chunks->num_chunks();
  args.chunks = in.chunks->chunks();
  args.sequence_begin = in.chunks->sequence_begin();
  in.initial_state = StateRows(call, "initial_state", in.initial_state, config);
  args.initial_state = DataOrNull(in.initial_state.kv);
  args.initial_norm = DataOrNull(in.initial_state.norm);
  // One for each thread, because forward and backward run in different threads.
  static thread_local DecayPlanCache plans;
  call.plan = plans.Find({.args = args,
                          .limits = LimitsOf(in.q),
                          .request = {.chunk_size = static_cast<int>(in.chunks->chunk_size),
                                      .num_segments = config.num_segments,
                                      .batch_tiles = config.batch_tiles,
                                      .warpgroups = config.warpgroups}},
                         [&](const kernels::DecayAttentionPlan& plan) {
                           if (!plan.is_cuda) return;
                           LogRoute("decay attention", kernels::cuda::DescribeRoute(args, plan));
                         });
  return call;
}

// Allocates the workspace of a forward or backward. Warns once per process if short documents make
// it larger than a plan allows.
at::Tensor Workspace(const DecayCall& call, size_t bytes) {
  static std::once_flag warned;
  const kernels::DecayAttentionArgs& args = call.args;
  if (call.is_cuda() && kernels::cuda::DocumentsExceedWorkspaceLimit(args, bytes))
    std::call_once(warned, [&] {
      HL_WARN("kernels", "decay attention: the documents of ", args.batch, " rows of ",
              args.seq_len, " tokens make up to ", args.num_chunks,
              " chunks, so its workspace takes ", bytes >> 20, " MiB, more than the limit of ",
              kernels::cuda::WorkspaceLimit(args) >> 20,
              " MiB. Use fewer rows per micro-batch if the memory does not suffice.");
    });
  return call.Bytes(bytes);
}

// The tensors that a forward keeps for its backward.
struct Kept {
  at::Tensor checkpoints;      // bytes, in the kernels' own layout
  at::Tensor out, norm_denom;  // only with the normaliser
};

struct DecayAttentionOp {
  struct Inputs {
    at::Tensor q, k, v, log_decay, key_scale, initial_kv, initial_norm;
  };
  struct Outputs {
    at::Tensor out, final_kv;
    at::Tensor final_norm;  // only with the normaliser
  };
  struct Saved {
    Inputs inputs;
    Kept kept;
  };
};

struct Keep {
  bool checkpoints = false, norm_denom = false;
};
struct DecayForwardResult {
  DecayAttentionOutput output;
  Kept kept;
};

// dL/d(out) in the form that the kernels read.
at::Tensor OutputGradient(const DecayCall& call, const at::Tensor& dout) {
  const kernels::DecayAttentionArgs& args = call.args;
  HL_CHECK(
      FitsWith(call.inputs.q, dout, {args.batch, args.seq_len, args.num_heads, args.head_dim_v}),
      "decay attention backward: dout ", Describe(dout), " does not fit the output [", args.batch,
      ", ", args.seq_len, ", ", args.num_heads, ", ", args.head_dim_v, "] on ",
      call.inputs.q.device().str());
  return Rows(dout.to(call.inputs.v.scalar_type()));
}

DecayForwardResult RunForward(DecayCall& call, const Keep& keep) {
  const c10::DeviceGuard guard(call.inputs.q.device());
  DecayForwardResult result;
  kernels::DecayAttentionArgs& args = call.args;
  result.output = {.out = at::empty({args.batch, args.seq_len, args.num_heads, args.head_dim_v},
                                    call.inputs.v.options()),
                   .final_state = call.EmptyState()};
  args.out = ViewOf(result.output.out);
  args.final_state = MutableDataOrNull(result.output.final_state.kv);
  args.final_norm = MutableDataOrNull(result.output.final_state.norm);
  if (keep.checkpoints) {
    result.kept.checkpoints = call.Bytes(kernels::CheckpointBytes(args, call.plan));
    args.checkpoints = result.kept.checkpoints.data_ptr();
  }
  if (keep.norm_denom && call.normalised()) {
    result.kept.out = result.output.out;
    result.kept.norm_denom = call.Empty({args.batch, args.seq_len, args.num_heads});
    args.norm_denom = MutableDataOrNull(result.kept.norm_denom);
  }
  const at::Tensor workspace = Workspace(call, kernels::ForwardWorkspaceBytes(args, call.plan));
  args.workspace = workspace.data_ptr();
  HL_DISPATCH(call.is_cuda(), Forward, args, call.plan);
  args.workspace = nullptr;
  return result;
}

// Sets the arguments of the forward that its backward reads again.
void Restore(DecayCall& call, const Kept& kept) {
  if (kept.checkpoints.defined()) call.args.checkpoints = kept.checkpoints.data_ptr();
  if (!call.normalised()) return;
  call.args.out = ViewOf(kept.out);
  call.args.norm_denom = MutableDataOrNull(kept.norm_denom);
}

struct Wanted {
  bool log_decay = true, key_scale = true, initial_kv = true, initial_norm = true;
  bool any() const { return log_decay || key_scale || initial_kv || initial_norm; }
};
struct Upstream {
  at::Tensor dout;         // undefined: zero
  DecayState final_state;  // undefined fields: zero
};

DecayAttentionGrads EmptyGrads(const DecayCall& call, const Wanted& wanted) {
  const DecayAttentionInputs& in = call.inputs;
  DecayAttentionGrads grads = {.dq = in.q_gradient.EmptyLike(in.q),
                               .dk = in.k_gradient.EmptyLike(in.k),
                               .dv = in.v_gradient.EmptyLike(in.v),
                               .dlog_decay = {}};
  if (wanted.log_decay && in.log_decay.defined()) {
    grads.dlog_decay = call.Empty(in.log_decay.sizes());
    if (call.args.batch == 0 || call.args.seq_len == 0) grads.dlog_decay.zero_();  // no kernel runs
  }
  if (wanted.key_scale && in.key_scale.defined())
    grads.dkey_scale = call.Empty(in.key_scale.sizes());
  if (wanted.initial_kv) grads.dinitial_state.kv = call.Empty(call.StateSizes());
  if (wanted.initial_norm && call.normalised())
    grads.dinitial_state.norm = call.Empty(call.NormSizes());
  return grads;
}

DecayAttentionGrads RunBackward(DecayCall& call, const DecayAttentionConfig& config,
                                const Upstream& upstream, const Wanted& wanted, const Kept& kept) {
  const DecayAttentionInputs& in = call.inputs;
  const c10::DeviceGuard guard(in.q.device());
  kernels::DecayAttentionArgs& args = call.args;
  Restore(call, kept);
  const at::Tensor dout =
      upstream.dout.defined()
          ? OutputGradient(call, upstream.dout)
          : at::zeros({args.batch, args.seq_len, args.num_heads, args.head_dim_v}, in.v.options());
  const DecayAttentionGrads grads = EmptyGrads(call, wanted);
  const DecayState dfinal = StateRows(call, "dfinal_state", upstream.final_state, config);
  kernels::DecayAttentionGradArgs grad_args = {
      .forward = args,
      .dout = ViewOf(dout),
      .dq = ViewOf(grads.dq),
      .dk = ViewOf(grads.dk),
      .dv = ViewOf(grads.dv),
      .dfinal_state = DataOrNull(dfinal.kv),
      .dinitial_state = MutableDataOrNull(grads.dinitial_state.kv),
      .dfinal_norm = DataOrNull(dfinal.norm),
      .dinitial_norm = MutableDataOrNull(grads.dinitial_state.norm)};
  if (grads.dlog_decay.defined()) grad_args.dlog_decay = DecayViewOf(grads.dlog_decay);
  if (grads.dkey_scale.defined()) grad_args.dkey_scale = ViewOf(grads.dkey_scale);
  const at::Tensor workspace = Workspace(call, kernels::BackwardWorkspaceBytes(args, call.plan));
  grad_args.forward.workspace = workspace.data_ptr();
  HL_DISPATCH(call.is_cuda(), Backward, grad_args, call.plan);
  return grads;
}

// The data other than tensors that a backward needs.
struct DecayBackwardPlan {
  std::shared_ptr<const SequenceChunks> chunks;
  DecayAttentionConfig config;
  Wanted wanted;
  ColumnSlice q_gradient, k_gradient, v_gradient;

  DecayAttentionOp::Inputs operator()(const BackwardOf<DecayAttentionOp>& backward) const {
    const DecayAttentionOp::Inputs& in = backward.saved.inputs;
    const DecayAttentionOp::Outputs& grads = backward.grads;
    DecayCall call = MakeCall({.q = in.q,
                               .k = in.k,
                               .v = in.v,
                               .log_decay = in.log_decay,
                               .key_scale = in.key_scale,
                               .chunks = chunks,
                               .initial_state = {.kv = in.initial_kv, .norm = in.initial_norm},
                               .q_gradient = q_gradient,
                               .k_gradient = k_gradient,
                               .v_gradient = v_gradient},
                              config);
    const DecayAttentionGrads result = RunBackward(
        call, config,
        {.dout = grads.out, .final_state = {.kv = grads.final_kv, .norm = grads.final_norm}},
        wanted, backward.saved.kept);
    return {.q = result.dq,
            .k = result.dk,
            .v = result.dv,
            .log_decay = result.dlog_decay,
            .key_scale = result.dkey_scale,
            .initial_kv = result.dinitial_state.kv,
            .initial_norm = result.dinitial_state.norm};
  }
};

DecayAttentionOutput Differentiable(const DecayAttentionInputs& inputs,
                                    const DecayAttentionConfig& config) {
  const auto wants = [](const at::Tensor& x) {
    return c10::GradMode::is_enabled() && x.defined() && x.requires_grad();
  };
  const Wanted wanted = {.log_decay = wants(inputs.log_decay),
                         .key_scale = wants(inputs.key_scale),
                         .initial_kv = wants(inputs.initial_state.kv),
                         .initial_norm = wants(inputs.initial_state.norm)};
  const bool differentiated = wants(inputs.q) || wants(inputs.k) || wants(inputs.v) || wanted.any();
  const DecayAttentionOp::Inputs given = {.q = inputs.q,
                                          .k = inputs.k,
                                          .v = inputs.v,
                                          .log_decay = inputs.log_decay,
                                          .key_scale = inputs.key_scale,
                                          .initial_kv = inputs.initial_state.kv,
                                          .initial_norm = inputs.initial_state.norm};
  const auto forward = [&]() -> ForwardOf<DecayAttentionOp> {
    DecayCall call = MakeCall(inputs, config);
    const auto [output, kept] =
        RunForward(call, {.checkpoints = differentiated, .norm_denom = differentiated});
    return {.outputs = {.out = output.out,
                        .final_kv = output.final_state.kv,
                        .final_norm = output.final_state.norm},
            .saved = {.inputs = given, .kept = kept},
            .backward = DecayBackwardPlan{.chunks = call.inputs.chunks,
                                          .config = config,
                                          .wanted = wanted,
                                          .q_gradient = inputs.q_gradient,
                                          .k_gradient = inputs.k_gradient,
                                          .v_gradient = inputs.v_gradient}};
  };
  const auto [out, final_kv, final_norm] = Apply<DecayAttentionOp>(
      {.name = "DecayAttention", .inputs = given, .undefined_grads = true, .forward = forward});
  return {.out = out, .final_state = {.kv = final_kv, .norm = final_norm}};
}

DecayAttentionGrads Gradients(const DecayAttentionInputs& inputs,
                              const DecayAttentionConfig& config, const at::Tensor& dout,
                              const DecayState& dfinal_state) {
  DecayCall call = MakeCall(inputs, config);
  const DecayForwardResult forward = RunForward(call, {.checkpoints = true, .norm_denom = true});
  return RunBackward(call, config, {.dout = dout, .final_state = dfinal_state}, {}, forward.kept);
}

// Checks the inputs that only some configs use.
void CheckOptional(const DecayAttentionInputs& in, const DecayAttentionConfig& config) {
  if (!in.log_key_scale.defined() && !in.norm_q.defined()) return;
  CheckShapes(in);
  const std::vector<int64_t> want = {in.q.size(0), in.q.size(1), NumHeads(in)};
  HL_CHECK(!in.log_key_scale.defined() ||
               (config.allow_growth && FitsWith(in.q, in.log_key_scale, want)),
           "decay attention: log_key_scale ", Describe(in.log_key_scale), " does not fit q ",
           Describe(in.q), ". Use [B, T, H], which is ", at::IntArrayRef(want),
           ", with allow_growth.");
  HL_CHECK(!in.norm_q.defined() || config.norm == kernels::NormKind::kSumOfKeys,
           "decay attention: norm_q without the normalizer. Set norm = kSumOfKeys.");
}

void CheckSummary(const DecayAttentionConfig& config) {
  HL_CHECK_AS(ExitCode::kUsage, !config.allow_growth,
              "decay attention: the summary of a segment carries no log scale. Use log_decay <= 0 "
              "without allow_growth, or whole sequences.");
}

}  // namespace

DecayAttentionOutput DecayAttention(const DecayAttentionInputs& inputs,
                                    const DecayAttentionConfig& config) {
  CheckStateFields("initial_state", inputs.initial_state, config);
  CheckOptional(inputs, config);
  if (inputs.segment != nullptr) return OverSegments(inputs, config);
  const auto run = [&](const DecayAttentionInputs& plain) {
    return plain.norm_q.defined() ? NormaliseSeparately(plain, config)
                                  : Differentiable(plain, config);
  };
  if (!config.allow_growth) return run(inputs);
  CheckShapes(inputs);
  const ScaledInputs scaled = ScaleGrowth(inputs, config);
  DecayAttentionOutput output = run(scaled.inputs);
  output.final_state.log_scale = scaled.final_log_scale;
  return output;
}

DecayAttentionGrads Backward(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout, const DecayState& dfinal_state) {
  HL_CHECK_AS(ExitCode::kUsage, !inputs.log_key_scale.defined() && !inputs.norm_q.defined(),
              "decay attention: Backward with log_key_scale or norm_q. Use autograd, through "
              "DecayAttention.");
  if (!config.allow_growth) return Gradients(inputs, config, dout, dfinal_state);
  CheckShapes(inputs);
  const ScaledInputs scaled = ScaleGrowth(inputs, config);
  DecayAttentionGrads grads = Gradients(scaled.inputs, config, dout, dfinal_state);
  grads.dkey_scale =
      inputs.key_scale.defined() ? grads.dkey_scale * scaled.key_factor : at::Tensor();
  return grads;
}

DecaySegment Summarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config) {
  CheckSummary(config);
  const c10::DeviceGuard guard(inputs.q.device());
  DecayCall call = MakeCall(inputs, config);
  const kernels::DecayAttentionArgs& args = call.args;
  const int width = kernels::IsPerChannel(args.decay_kind) ? args.head_dim_k : 1;
  const DecaySegment segment = {
      .log_transition = call.Empty({args.num_sequences, args.num_heads, width}),
      .state = call.EmptyState()};
  kernels::DecaySegmentArgs segment_args = {.forward = args,
                                            .dout = {},
                                            .log_transition = segment.log_transition.data_ptr(),
                                            .state = MutableDataOrNull(segment.state.kv),
                                            .norm = MutableDataOrNull(segment.state.norm)};
  const at::Tensor workspace = call.Bytes(kernels::SummaryWorkspaceBytes(args, call.plan));
  segment_args.forward.workspace = workspace.data_ptr();
  HL_DISPATCH(call.is_cuda(), Summarise, segment_args, call.plan);
  return segment;
}

DecayState BackwardSummarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout) {
  CheckSummary(config);
  const c10::DeviceGuard guard(inputs.q.device());
  DecayCall call = MakeCall(inputs, config);
  const at::Tensor rows = OutputGradient(call, dout);
  const DecayState dstate = call.EmptyState();
  DecayForwardResult forward;
  if (call.normalised()) {
    forward = RunForward(call, {.norm_denom = true});
    Restore(call, forward.kept);
  }
  kernels::DecaySegmentArgs segment_args = {.forward = call.args,
                                            .dout = ViewOf(rows),
                                            .log_transition = nullptr,
                                            .state = MutableDataOrNull(dstate.kv),
                                            .norm = MutableDataOrNull(dstate.norm)};
  const at::Tensor workspace =
      call.Bytes(kernels::ReverseSummaryWorkspaceBytes(call.args, call.plan));
  segment_args.forward.workspace = workspace.data_ptr();
  HL_DISPATCH(call.is_cuda(), BackwardSummarise, segment_args, call.plan);
  return dstate;
}

}  // namespace halflife::ops
