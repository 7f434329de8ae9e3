#include "kernels/decay_attention/decay_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "core/error.h"
#include "kernels/decay_attention/args.h"
#include "kernels/dispatch.h"
#include "kernels/tensor_checks.h"
#ifdef HALFLIFE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace halflife::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

DType ToDType(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return DType::kF32;
    case at::kDouble:
      return DType::kF64;
    case at::kBFloat16:
      return DType::kBF16;
    default:
      HL_FAIL(ExitCode::kUsage, "decay attention of ", DTypeName(x.scalar_type()),
              "; fp32, bf16 or (on the CPU) fp64 would work");
  }
}

TensorView ViewOf(const at::Tensor& x) {
  const auto stride = [&](int64_t dim) { return dim < x.dim() ? x.stride(dim) : 0; };
  return {.data = x.data_ptr(),
          .stride_b = stride(0),
          .stride_t = stride(1),
          .stride_h = stride(2),
          .dtype = ToDType(x)};
}

// As the kernels read it: the last dimension contiguous.
at::Tensor Rows(const at::Tensor& x) {
  return !x.defined() || x.stride(-1) == 1 ? x : x.contiguous();
}
// The same of a log_decay: a constant one has no gaps between its heads either.
at::Tensor DecayRows(const at::Tensor& x, bool constant) {
  return constant ? x.contiguous() : Rows(x);
}

// [H], [H, K] constant; [B, T, H], [B, T, H, K] per token
TensorView DecayViewOf(const at::Tensor& x) {
  TensorView view = {.data = x.data_ptr(), .dtype = ToDType(x)};
  if (x.dim() <= 2) {
    view.stride_h = x.stride(0);
  } else {
    view.stride_b = x.stride(0), view.stride_t = x.stride(1), view.stride_h = x.stride(2);
  }
  return view;
}

DecayKind KindOf(const at::Tensor& log_decay) {
  if (!log_decay.defined()) return DecayKind::kNone;
  constexpr DecayKind kByDims[] = {DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                   DecayKind::kPerToken, DecayKind::kPerTokenChannel};
  return kByDims[log_decay.dim() - 1];
}

int64_t NumDecayHeads(const at::Tensor& log_decay) {
  if (!log_decay.defined()) return 1;
  return log_decay.size(log_decay.dim() <= 2 ? 0 : 2);
}

// The kernels count rows, tokens, heads and channels in 32 bits (and form offsets in 64).
void CheckCounts(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& x : tensors)
    for (const int64_t size : x.sizes())
      HL_CHECK_AS(ExitCode::kUsage, size <= std::numeric_limits<int>::max(),
                  "decay attention of a tensor ", x.sizes(), "; dimensions up to ",
                  std::numeric_limits<int>::max(), " would work");
}

void CheckShapes(const DecayAttentionInputs& in) {
  const at::Tensor &q = in.q, &k = in.k, &v = in.v, &g = in.log_decay;
  HL_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, "q ", q.sizes(), ", k ", k.sizes(), ", v ",
           v.sizes(), "; all are [B, T, heads, head_dim]");
  HL_CHECK(q.is_cpu() || q.is_cuda(), "decay attention of q ", Describe(q),
           "; the CPU and CUDA have kernels for it");
  CheckCounts({q, k, v});
  const int64_t batch = q.size(0), seq_len = q.size(1), dim_k = q.size(3);
  const auto rows = [&](const at::Tensor& x) {
    return x.size(0) == batch && x.size(1) == seq_len && x.device() == q.device();
  };
  HL_CHECK(rows(k) && rows(v) && k.size(3) == dim_k, "q ", Describe(q), ", k ", Describe(k), ", v ",
           Describe(v), " do not fit each other; one B, T, device and, of q and k, K would work");
  if (g.defined()) {
    HL_CHECK(g.dim() >= 1 && g.dim() <= 4 && g.device() == q.device() && (g.dim() <= 2 || rows(g)),
             "log_decay ", Describe(g), " beside q ", Describe(q),
             "; [Hd], [Hd, K], [B, T, Hd] or [B, T, Hd, K] on the device of q would work");
    HL_CHECK(g.dim() % 2 == 1 || g.size(-1) == dim_k, "log_decay ", g.sizes(),
             " per channel beside K ", dim_k);
  }
  HL_CHECK(!in.initial_state.defined() || in.initial_state.device() == q.device(), "initial_state ",
           Describe(in.initial_state), " is not on the device of q, ", q.device().str());
  HL_CHECK(in.chunks == nullptr || (in.chunks->batch == batch && in.chunks->seq_len == seq_len &&
                                    in.chunks->device == q.device()),
           "chunks of another batch or device");
}

// The arguments of one call with all that keeps them valid. `inputs` are those the pointers were taken from.
struct Call {
  DecayAttentionInputs inputs;
  DecayAttentionArgs args;
  DecayAttentionPlan plan;

  bool is_cuda() const { return inputs.q.is_cuda(); }
  at::ScalarType compute() const { return ComputeType(inputs.q); }
  at::Tensor Empty(at::IntArrayRef sizes) const {
    return at::empty(sizes, inputs.q.options().dtype(compute()));
  }
  at::Tensor EmptyState() const {
    return Empty({args.num_sequences, args.num_heads, args.head_dim_k, args.head_dim_v});
  }
  at::Tensor Bytes(size_t bytes) const {
    return at::empty({static_cast<int64_t>(bytes)}, inputs.q.options().dtype(at::kByte));
  }
};

DeviceLimits LimitsOf([[maybe_unused]] const at::Tensor& x) {
#ifdef HALFLIFE_WITH_CUDA
  if (x.is_cuda()) {
    const cudaDeviceProp* device = at::cuda::getDeviceProperties(x.get_device());
    return {.is_cuda = true,
            .num_sms = device->multiProcessorCount,
            .shared_memory_bytes = static_cast<int64_t>(device->sharedMemPerBlockOptin)};
  }
#endif
  return {};
}

Call MakeCall(const DecayAttentionInputs& given, const DecayAttentionConfig& config) {
  CheckShapes(given);
  Call call = {.inputs = given, .args = {}, .plan = {}};
  DecayAttentionInputs& in = call.inputs;
  const at::ScalarType compute = ComputeType(in.q);
  in.q = Rows(in.q), in.k = Rows(in.k), in.v = Rows(in.v);
  if (in.log_decay.defined())
    in.log_decay = DecayRows(in.log_decay.to(compute), in.log_decay.dim() <= 2);
  if (in.chunks == nullptr)
    in.chunks = MakeSequenceChunks({.batch = in.q.size(0), .seq_len = in.q.size(1)}, in.q.device());

  DecayAttentionArgs& args = call.args;
  args.batch = static_cast<int>(in.q.size(0));
  args.seq_len = static_cast<int>(in.q.size(1));
  args.num_q_heads = static_cast<int>(in.q.size(2));
  args.num_k_heads = static_cast<int>(in.k.size(2));
  args.num_v_heads = static_cast<int>(in.v.size(2));
  args.num_decay_heads = static_cast<int>(NumDecayHeads(in.log_decay));
  args.num_heads =
      std::max({args.num_q_heads, args.num_k_heads, args.num_v_heads, args.num_decay_heads});
  args.head_dim_k = static_cast<int>(in.q.size(3));
  args.head_dim_v = static_cast<int>(in.v.size(3));
  args.decay_kind = KindOf(in.log_decay);
  args.scale = config.scale;
  args.q = ViewOf(in.q), args.k = ViewOf(in.k), args.v = ViewOf(in.v);
  args.out = {.dtype = args.v.dtype};
  if (in.log_decay.defined()) args.log_decay = DecayViewOf(in.log_decay);
  args.num_sequences = in.chunks->num_sequences();
  args.num_chunks = in.chunks->num_chunks();
  args.chunks = in.chunks->chunks();
  args.sequence_begin = in.chunks->sequence_begin();
  if (in.initial_state.defined()) {
    in.initial_state = in.initial_state.to(compute).contiguous();
    const std::vector<int64_t> want = {args.num_sequences, args.num_heads, args.head_dim_k,
                                       args.head_dim_v};
    HL_CHECK(in.initial_state.sizes() == at::IntArrayRef(want), "initial_state ",
             in.initial_state.sizes(), ", not ", at::IntArrayRef(want));
    args.initial_state = in.initial_state.const_data_ptr();
  }
  call.plan = MakePlan(args, LimitsOf(in.q), config.num_segments);
  call.plan.chunk_size = static_cast<int>(in.chunks->chunk_size);
  return call;
}

[[noreturn]] void FailWithoutCuda() {
  HL_FAIL(
      ExitCode::kEnvironment,
      "decay attention on a CUDA tensor, but this build has no CUDA; configure with nvcc at hand");
}

#ifdef HALFLIFE_WITH_CUDA
#define HL_DISPATCH(is_cuda, function, ...)                                  \
  ((is_cuda) ? cuda::function(__VA_ARGS__, at::cuda::getCurrentCUDAStream()) \
             : cpu::function(__VA_ARGS__))
#else
#define HL_DISPATCH(is_cuda, function, ...) \
  ((is_cuda) ? FailWithoutCuda() : cpu::function(__VA_ARGS__))
#endif

struct ForwardResult {
  DecayAttentionOutput output;
  at::Tensor checkpoints;  // bytes; undefined unless the call will be differentiated
};

// dL/d(out), as the kernels read it.
at::Tensor OutputGradient(const Call& call, const at::Tensor& dout) {
  const DecayAttentionArgs& args = call.args;
  HL_CHECK(
      FitsBeside(call.inputs.q, dout, {args.batch, args.seq_len, args.num_heads, args.head_dim_v}),
      "decay attention backward: dout ", Describe(dout), " of an output [", args.batch, ", ",
      args.seq_len, ", ", args.num_heads, ", ", args.head_dim_v, "] on ",
      call.inputs.q.device().str());
  return Rows(dout.to(call.inputs.v.scalar_type()));
}

ForwardResult RunForward(Call& call, bool differentiated) {
  const c10::DeviceGuard guard(call.inputs.q.device());
  ForwardResult result;
  DecayAttentionArgs& args = call.args;
  result.output.out = at::empty({args.batch, args.seq_len, args.num_heads, args.head_dim_v},
                                call.inputs.v.options());
  result.output.final_state = call.EmptyState();
  args.out = ViewOf(result.output.out);
  args.final_state = result.output.final_state.data_ptr();
  if (differentiated) {
    result.checkpoints = call.Bytes(CheckpointBytes(args, call.plan));
    args.checkpoints = result.checkpoints.data_ptr();
  }
  const at::Tensor workspace = call.Bytes(ForwardWorkspaceBytes(args, call.plan));
  args.workspace = workspace.data_ptr();
  HL_DISPATCH(call.is_cuda(), Forward, args, call.plan);
  args.workspace = nullptr;
  return result;
}

struct Upstream {
  at::Tensor dout, dfinal_state;  // either may be undefined: zero
  bool want_decay = true, want_initial_state = true;
};

DecayAttentionGrads RunBackward(Call& call, const Upstream& upstream,
                                const at::Tensor& checkpoints) {
  const DecayAttentionInputs& in = call.inputs;
  const c10::DeviceGuard guard(in.q.device());
  DecayAttentionArgs& args = call.args;
  args.checkpoints = checkpoints.data_ptr();
  const at::Tensor dout =
      upstream.dout.defined()
          ? OutputGradient(call, upstream.dout)
          : at::zeros({args.batch, args.seq_len, args.num_heads, args.head_dim_v}, in.v.options());
  DecayAttentionGrads grads = {.dq = at::empty(in.q.sizes(), in.q.options()),
                               .dk = at::empty(in.k.sizes(), in.k.options()),
                               .dv = at::empty(in.v.sizes(), in.v.options()),
                               .dlog_decay = {},
                               .dinitial_state = {}};
  DecayAttentionGradArgs grad_args = {.forward = args,
                                      .dout = ViewOf(dout),
                                      .dq = ViewOf(grads.dq),
                                      .dk = ViewOf(grads.dk),
                                      .dv = ViewOf(grads.dv)};
  grad_args.forward.out = {.dtype = args.v.dtype};
  if (upstream.want_decay && in.log_decay.defined()) {
    grads.dlog_decay = call.Empty(in.log_decay.sizes());
    if (args.batch == 0 || args.seq_len == 0) grads.dlog_decay.zero_();  // no kernel runs
    grad_args.dlog_decay = DecayViewOf(grads.dlog_decay);
  }
  if (upstream.want_initial_state) {
    grads.dinitial_state = call.EmptyState();
    grad_args.dinitial_state = grads.dinitial_state.data_ptr();
  }
  at::Tensor dfinal_state;
  if (upstream.dfinal_state.defined()) {
    HL_CHECK(FitsBeside(in.q, upstream.dfinal_state,
                        {args.num_sequences, args.num_heads, args.head_dim_k, args.head_dim_v}),
             "decay attention backward: dfinal_state ", Describe(upstream.dfinal_state),
             " of states [", args.num_sequences, ", ", args.num_heads, ", ", args.head_dim_k, ", ",
             args.head_dim_v, "] on ", in.q.device().str());
    dfinal_state = upstream.dfinal_state.to(call.compute()).contiguous();
    grad_args.dfinal_state = dfinal_state.const_data_ptr();
  }
  const at::Tensor workspace = call.Bytes(BackwardWorkspaceBytes(args, call.plan));
  grad_args.forward.workspace = workspace.data_ptr();
  HL_DISPATCH(call.is_cuda(), Backward, grad_args, call.plan);
  return grads;
}

// What a backward needs beside tensors.
struct SavedCall : torch::CustomClassHolder {
  std::shared_ptr<const SequenceChunks> chunks;
  DecayAttentionConfig config;
  bool differentiated = false, want_decay = false, want_initial_state = false;
};

struct DecayAttentionFunction : torch::autograd::Function<DecayAttentionFunction> {
  using Optional = const std::optional<at::Tensor>&;

  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, Optional log_decay, Optional initial_state,
                               const c10::intrusive_ptr<SavedCall>& saved) {
    context->set_materialize_grads(false);
    const DecayAttentionInputs inputs = {.q = q,
                                         .k = k,
                                         .v = v,
                                         .log_decay = log_decay.value_or(at::Tensor()),
                                         .chunks = saved->chunks,
                                         .initial_state = initial_state.value_or(at::Tensor())};
    Call call = MakeCall(inputs, saved->config);
    saved->chunks = call.inputs.chunks;
    const ForwardResult result = RunForward(call, saved->differentiated);
    context->save_for_backward(
        {q, k, v, inputs.log_decay, inputs.initial_state, result.checkpoints});
    context->saved_data["call"] = c10::IValue::make_capsule(saved);
    return {result.output.out, result.output.final_state};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto holder = context->saved_data["call"].toCapsule();
    const auto& saved_call = static_cast<const SavedCall&>(*holder);
    Call call = MakeCall({.q = saved[0],
                          .k = saved[1],
                          .v = saved[2],
                          .log_decay = saved[3],
                          .chunks = saved_call.chunks,
                          .initial_state = saved[4]},
                         saved_call.config);
    const DecayAttentionGrads result =
        RunBackward(call,
                    {.dout = grads[0],
                     .dfinal_state = grads[1],
                     .want_decay = saved_call.want_decay,
                     .want_initial_state = saved_call.want_initial_state},
                    saved[5]);
    return {result.dq,   result.dk, result.dv, result.dlog_decay, result.dinitial_state,
            at::Tensor()};
  }
};

void CheckStepTensors(const DecayAttentionStepInputs& in, const at::Tensor& state) {
  const at::Tensor &q = in.q, &k = in.k, &v = in.v, &g = in.log_decay;
  HL_CHECK(q.dim() == 3 && k.dim() == 3 && v.dim() == 3 && state.dim() == 4,
           "decay attention step of q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(),
           ", state ", state.sizes(), "; [B, heads, K], [B, heads, V] and [B, H, K, V] would work");
  HL_CHECK(q.is_cpu() || q.is_cuda(), "decay attention step of q ", Describe(q),
           "; the CPU and CUDA have kernels for it");
  CheckCounts({q, k, v, state});
  const int64_t batch = q.size(0), dim_k = q.size(2);
  HL_CHECK(k.size(0) == batch && v.size(0) == batch && k.size(2) == dim_k &&
               state.size(0) == batch && state.size(2) == dim_k && state.size(3) == v.size(2) &&
               state.is_contiguous(),
           "decay attention step: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(), ", state ",
           state.sizes(), " do not fit each other");
  const auto like_q = [&](const at::Tensor& x) {
    return x.scalar_type() == q.scalar_type() && x.device() == q.device();
  };
  HL_CHECK(like_q(k) && like_q(v) && state.device() == q.device() &&
               state.scalar_type() == ComputeType(q),
           "decay attention step of q ", Describe(q), ", k ", Describe(k), ", v ", Describe(v),
           ", state ", Describe(state), "; q, k, v of one dtype and device, and a state of ",
           DTypeName(ComputeType(q)), " beside them would work");
  if (!g.defined()) return;
  const int64_t rest = g.dim() - (in.constant_decay ? 0 : 1);  // [Hd] or [Hd, K]
  HL_CHECK((rest == 1 || (rest == 2 && g.size(-1) == dim_k)) &&
               (in.constant_decay || g.size(0) == batch) && g.device() == q.device(),
           "decay attention step: log_decay ", Describe(g), " beside q ", Describe(q),
           in.constant_decay ? "; [Hd] or [Hd, K]" : "; [B, Hd] or [B, Hd, K]",
           " on its device would work");
}

std::optional<at::Tensor> IfDefined(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

}  // namespace

DecayAttentionOutput DecayAttention(const DecayAttentionInputs& inputs,
                                    const DecayAttentionConfig& config) {
  const auto wants = [](const at::Tensor& x) {
    return c10::GradMode::is_enabled() && x.defined() && x.requires_grad();
  };
  auto saved = c10::make_intrusive<SavedCall>();
  saved->chunks = inputs.chunks;
  saved->config = config;
  saved->want_decay = wants(inputs.log_decay);
  saved->want_initial_state = wants(inputs.initial_state);
  saved->differentiated = wants(inputs.q) || wants(inputs.k) || wants(inputs.v) ||
                          saved->want_decay || saved->want_initial_state;
  const variable_list out =
      DecayAttentionFunction::apply(inputs.q, inputs.k, inputs.v, IfDefined(inputs.log_decay),
                                    IfDefined(inputs.initial_state), saved);
  return {out[0], out[1]};
}

DecaySegment Summarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config) {
  const c10::DeviceGuard guard(inputs.q.device());
  Call call = MakeCall(inputs, config);
  const DecayAttentionArgs& args = call.args;
  const int width = IsPerChannel(args.decay_kind) ? args.head_dim_k : 1;
  const DecaySegment segment = {
      .log_transition = call.Empty({args.num_sequences, args.num_heads, width}),
      .state = call.EmptyState()};
  DecaySegmentArgs segment_args = {.forward = args,
                                   .dout = {},
                                   .log_transition = segment.log_transition.data_ptr(),
                                   .state = segment.state.data_ptr()};
  const at::Tensor workspace = call.Bytes(ForwardWorkspaceBytes(args, call.plan));
  segment_args.forward.workspace = workspace.data_ptr();
  HL_DISPATCH(call.is_cuda(), Summarise, segment_args, call.plan);
  return segment;
}

at::Tensor BackwardSummarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout) {
  const c10::DeviceGuard guard(inputs.q.device());
  Call call = MakeCall(inputs, config);
  const at::Tensor rows = OutputGradient(call, dout), dstate = call.EmptyState();
  DecaySegmentArgs segment_args = {.forward = call.args,
                                   .dout = ViewOf(rows),
                                   .log_transition = nullptr,
                                   .state = dstate.data_ptr()};
  const at::Tensor workspace = call.Bytes(BackwardWorkspaceBytes(call.args, call.plan));
  segment_args.forward.workspace = workspace.data_ptr();
  HL_DISPATCH(call.is_cuda(), BackwardSummarise, segment_args, call.plan);
  return dstate;
}

DecayAttentionGrads Backward(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout, const at::Tensor& dfinal_state) {
  Call call = MakeCall(inputs, config);
  const ForwardResult forward = RunForward(call, true);
  return RunBackward(call, {.dout = dout, .dfinal_state = dfinal_state}, forward.checkpoints);
}

at::Tensor DecayAttentionStep(const DecayAttentionStepInputs& inputs, double scale,
                              at::Tensor& state) {
  CheckStepTensors(inputs, state);
  const at::Tensor q = Rows(inputs.q), k = Rows(inputs.k), v = Rows(inputs.v);
  const c10::DeviceGuard guard(q.device());
  // one token: the head is the second dimension
  const auto view = [](const at::Tensor& x) {
    return TensorView{.data = x.data_ptr(),
                      .stride_b = x.stride(0),
                      .stride_t = 0,
                      .stride_h = x.stride(1),
                      .dtype = ToDType(x)};
  };
  const at::Tensor out = at::empty({q.size(0), state.size(1), v.size(2)}, v.options());
  DecayAttentionStepArgs args = {.batch = static_cast<int>(q.size(0)),
                                 .num_heads = static_cast<int>(state.size(1)),
                                 .num_q_heads = static_cast<int>(q.size(1)),
                                 .num_k_heads = static_cast<int>(k.size(1)),
                                 .num_v_heads = static_cast<int>(v.size(1)),
                                 .num_decay_heads = 1,
                                 .head_dim_k = static_cast<int>(q.size(2)),
                                 .head_dim_v = static_cast<int>(v.size(2)),
                                 .scale = scale,
                                 .q = view(q),
                                 .k = view(k),
                                 .v = view(v),
                                 .out = view(out)};
  at::Tensor log_decay;
  if (inputs.log_decay.defined()) {
    log_decay = DecayRows(inputs.log_decay.to(ComputeType(q)), inputs.constant_decay);
    const int64_t head = inputs.constant_decay ? 0 : 1;
    const bool per_channel = log_decay.dim() == head + 2;
    args.decay_kind = inputs.constant_decay
                          ? (per_channel ? DecayKind::kPerHeadChannel : DecayKind::kPerHead)
                          : (per_channel ? DecayKind::kPerTokenChannel : DecayKind::kPerToken);
    args.num_decay_heads = static_cast<int>(log_decay.size(head));
    args.log_decay = {.data = log_decay.data_ptr(),
                      .stride_b = inputs.constant_decay ? 0 : log_decay.stride(0),
                      .stride_t = 0,
                      .stride_h = log_decay.stride(head),
                      .dtype = ToDType(log_decay)};
  }
  args.state = state.data_ptr();
  HL_DISPATCH(q.is_cuda(), Step, args);
  return out;
}

}  // namespace halflife::kernels
