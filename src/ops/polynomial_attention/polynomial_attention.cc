#include "ops/polynomial_attention/polynomial_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <string>
#include <vector>

#include "core/concat.h"
#include "core/error.h"
#include "ops/polynomial_attention/polynomial_with_states.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gpu_route.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

constexpr const char* kPolynomialKernel = "polynomial attention";

void CheckShapes(const PolynomialAttentionInputs& in) {
  const at::Tensor &q = in.q, &k = in.k, &v = in.v;
  HL_CHECK(q.dim() == 4 && v.dim() == 4 && q.sizes() == k.sizes() && q.size(0) == v.size(0) &&
               q.size(1) == v.size(1) && q.size(2) == v.size(2),
           "polynomial attention got q ", Describe(q), ", k ", Describe(k), ", v ", Describe(v),
           ". Use q and k [B, T, H, d], v [B, T, H, V].");
  HL_CHECK(q.is_cpu() || q.is_cuda(), "polynomial attention got q ", Describe(q),
           ". Use the CPU or CUDA: other devices have no kernels.");
  HL_CHECK(k.device() == q.device() && v.device() == q.device(), "polynomial attention got q ",
           Describe(q), ", k ", Describe(k), ", v ", Describe(v), ". Use one device.");
  if (q.is_cuda() && !kHasCudaKernels) FailWithoutCuda(kPolynomialKernel);
  CheckCounts(kPolynomialKernel, {q, v});
  HL_CHECK(
      in.chunks == nullptr || (in.chunks->batch == q.size(0) && in.chunks->seq_len == q.size(1) &&
                               in.chunks->device == q.device()),
      "polynomial attention: chunks were made for another batch or device. Make them for these "
      "inputs.");
}

void CheckStateOf(const char* what, const PolynomialState& state, const at::Tensor& q,
                  at::IntArrayRef sizes, bool normalise) {
  HL_CHECK(!state.norm.defined() || normalise, "polynomial attention: ", what, ".norm ",
           Describe(state.norm),
           ", but nothing is normalized. Set normalise, or pass no such state.");
  const auto check = [&](const char* field, const at::Tensor& x, at::IntArrayRef want) {
    HL_CHECK(!x.defined() || FitsWith(q, x, want), "polynomial attention: ", what, field, " ",
             Describe(x), " does not fit states ", want, " on ", q.device().str());
  };
  check(".kv", state.kv, sizes);
  check(".norm", state.norm, sizes.slice(0, 3));
}

// The arguments of one call and the tensors that keep their pointers valid.
struct PolynomialCall {
  PolynomialAttentionInputs inputs;
  kernels::PolynomialAttentionArgs args;
  kernels::PolynomialForm form = kernels::PolynomialForm::kByShape;

  at::Tensor Empty(at::IntArrayRef sizes) const {
    return at::empty(sizes, inputs.q.options().dtype(ComputeType(inputs.q)));
  }
  at::Tensor Bytes(size_t bytes) const {
    return at::empty({static_cast<int64_t>(bytes)}, inputs.q.options().dtype(at::kByte));
  }
  std::vector<int64_t> StateSizes() const {
    return {args.num_sequences, args.num_heads,
            kernels::FeatureLayout(args.head_dim, args.weights).count, args.head_dim_v};
  }
  PolynomialState EmptyState() const {
    const std::vector<int64_t> sizes = StateSizes();
    return {.kv = Empty(sizes),
            .norm = args.normalise ? Empty({sizes[0], sizes[1], sizes[2]}) : at::Tensor()};
  }
  // Returns a state, or the gradient of one, in the form that the kernels read. Undefined fields
  // stay undefined.
  PolynomialState StateRows(const char* what, const PolynomialState& state) const {
    CheckStateOf(what, state, inputs.q, StateSizes(), args.normalise);
    const auto rows = [&](const at::Tensor& x) {
      return x.defined() ? x.to(ComputeType(inputs.q)).contiguous() : x;
    };
    return {.kv = rows(state.kv), .norm = rows(state.norm)};
  }
  kernels::PolynomialAttentionPlan Plan() const {
    return kernels::MakePlan(args, {.chunk_size = static_cast<int>(inputs.chunks->chunk_size),
                                    .form = form,
                                    .is_cuda = inputs.q.is_cuda()});
  }
};

PolynomialCall MakeCall(const PolynomialAttentionInputs& given,
                        const PolynomialAttentionConfig& config) {
  CheckShapes(given);
  PolynomialCall call = {.inputs = given, .args = {}, .form = config.form};
  PolynomialAttentionInputs& in = call.inputs;
  in.q = Rows(in.q), in.k = Rows(in.k), in.v = Rows(in.v);
  if (in.chunks == nullptr)
    in.chunks = MakeSequenceChunks({.batch = in.q.size(0), .seq_len = in.q.size(1)}, in.q.device());
  kernels::PolynomialAttentionArgs& args = call.args;
  args.batch = static_cast<int>(in.q.size(0));
  args.seq_len = static_cast<int>(in.q.size(1));
  args.num_heads = static_cast<int>(in.q.size(2));
  args.head_dim = static_cast<int>(in.q.size(3));
  args.head_dim_v = static_cast<int>(in.v.size(3));
  args.scale = config.scale;
  args.weights = config.weights;
  args.normalise = config.normalise;
  args.norm_eps = config.norm_eps;
  args.q = ViewOf(kPolynomialKernel, in.q), args.k = ViewOf(kPolynomialKernel, in.k),
  args.v = ViewOf(kPolynomialKernel, in.v);
  args.out = {.dtype = args.v.dtype};
  args.num_sequences = in.chunks->num_sequences();
  args.num_chunks = in.chunks->num_chunks();
  args.chunks = in.chunks->chunks();
  args.sequence_begin = in.chunks->sequence_begin();
  in.initial_state = call.StateRows("initial_state", in.initial_state);
  args.initial_state = DataOrNull(in.initial_state.kv);
  args.initial_norm = DataOrNull(in.initial_state.norm);
  return call;
}

// Returns the checked and completed inputs if a GPU should use the quadratic kernel for the row's
// own tokens and features for earlier ones. Returns nullopt if the call must use the chunked
// kernel.
std::optional<PolynomialAttentionInputs> ByFeatures(const PolynomialAttentionInputs& given,
                                                    const PolynomialAttentionConfig& config) {
  if (!given.q.is_cuda()) return std::nullopt;
  PolynomialCall call = MakeCall(given, config);
  PolynomialAttentionInputs inputs = given;
  inputs.chunks = call.inputs.chunks;
  inputs.initial_state = call.inputs.initial_state;
  call.args.initial_state = nullptr;
  if (!call.Plan().quadratic || !WhyNotWithStates(inputs, config.normalise).empty())
    return std::nullopt;
  return inputs;
}
bool HasState(const PolynomialAttentionInputs& inputs, const PolynomialAttentionConfig& config) {
  return config.want_final_state || inputs.initial_state.kv.defined() ||
         inputs.initial_state.norm.defined();
}

// Describes which kernels run on a GPU and, if they are not the fastest ones, why.
std::string RouteOf(const PolynomialCall& call, const kernels::PolynomialAttentionPlan& plan) {
  const kernels::PolynomialAttentionArgs& args = call.args;
  if (plan.quadratic) return "pairs of tiles on tensor cores";
  const bool has_state = args.initial_state != nullptr || args.final_state != nullptr;
  const std::string why_not = WhyNotWithStates(call.inputs, args.normalise);
  return Concat("token by token: ",
                args.q.dtype != DType::kBF16                     ? "not bf16"
                : has_state && !why_not.empty()                  ? "with a state, " + why_not
                : call.form != kernels::PolynomialForm::kByShape ? "as was asked"
                                                                 : "long rows",
                ", ", args.seq_len, " tokens of ", Name(args.q.dtype));
}

struct PolynomialAttentionOp {
  struct Inputs {
    at::Tensor q, k, v, initial_kv, initial_norm;
  };
  struct Outputs {
    at::Tensor out, final_kv, final_norm;
    at::Tensor norm_denom;  // not differentiable
  };
  struct Saved {
    Inputs inputs;
    at::Tensor out, norm_denom;  // only if normalised
  };
};

struct PolynomialForwardResult {
  PolynomialAttentionOutput output;
  at::Tensor norm_denom;  // only if the output will be differentiated
};

PolynomialForwardResult RunForward(PolynomialCall& call, bool want_final_state,
                                   bool differentiated) {
  kernels::PolynomialAttentionArgs& args = call.args;
  PolynomialForwardResult result;
  result.output.out = call.inputs.out_place.EmptyLike(call.inputs.v);
  args.out = ViewOf(kPolynomialKernel, result.output.out);
  if (want_final_state) result.output.final_state = call.EmptyState();
  args.final_state = MutableDataOrNull(result.output.final_state.kv);
  args.final_norm = MutableDataOrNull(result.output.final_state.norm);
  if (differentiated && args.normalise)
    result.norm_denom = call.Empty({args.batch, args.seq_len, args.num_heads});
  args.norm_denom = MutableDataOrNull(result.norm_denom);
  const kernels::PolynomialAttentionPlan plan = call.Plan();
  RunOn(
      call.inputs.q, [&] { kernels::cpu::Forward(args, plan); },
      [&](auto stream) {
        LogRoute(kPolynomialKernel, RouteOf(call, plan));
        const at::Tensor workspace = call.Bytes(kernels::cuda::ForwardWorkspaceBytes(args, plan));
        args.workspace = workspace.data_ptr();
        kernels::cuda::Forward(args, plan, stream);
      });
  return result;
}

struct PolynomialGradients {
  at::Tensor dq, dk, dv;
  PolynomialState dinitial_state;
};

// Returns dL/d(out) in the form that the kernels read.
at::Tensor OutputGradient(const PolynomialCall& call, const at::Tensor& dout) {
  const at::Tensor& v = call.inputs.v;
  return dout.defined() ? Rows(dout.to(v.scalar_type())) : at::zeros(v.sizes(), v.options());
}

PolynomialGradients RunBackward(PolynomialCall& call, const at::Tensor& dout,
                                const PolynomialState& dfinal_given, bool wants_initial) {
  const PolynomialAttentionInputs& in = call.inputs;
  const at::Tensor rows = OutputGradient(call, dout);
  const PolynomialState dfinal = call.StateRows("dfinal_state", dfinal_given);
  if (dfinal.kv.defined() || dfinal.norm.defined() || wants_initial)
    call.form = kernels::PolynomialForm::kChunked;
  PolynomialGradients grads = {.dq = in.q_gradient.EmptyLike(in.q),
                               .dk = in.k_gradient.EmptyLike(in.k),
                               .dv = in.v_gradient.EmptyLike(in.v),
                               .dinitial_state = {}};
  if (wants_initial) grads.dinitial_state = call.EmptyState();
  kernels::PolynomialAttentionGradArgs args = {
      .forward = call.args,
      .dout = ViewOf(kPolynomialKernel, rows),
      .dq = ViewOf(kPolynomialKernel, grads.dq),
      .dk = ViewOf(kPolynomialKernel, grads.dk),
      .dv = ViewOf(kPolynomialKernel, grads.dv),
      .dfinal_state = DataOrNull(dfinal.kv),
      .dinitial_state = MutableDataOrNull(grads.dinitial_state.kv),
      .dfinal_norm = DataOrNull(dfinal.norm),
      .dinitial_norm = MutableDataOrNull(grads.dinitial_state.norm)};
  const kernels::PolynomialAttentionPlan plan = call.Plan();
  RunOn(
      in.q, [&] { kernels::cpu::Backward(args, plan); },
      [&](auto stream) {
        const at::Tensor workspace = call.Bytes(kernels::cuda::WorkspaceBytes(args.forward, plan));
        args.forward.workspace = workspace.data_ptr();
        kernels::cuda::Backward(args, plan, stream);
      });
  return grads;
}

// The parameters that a backward needs in addition to the saved tensors.
struct PolynomialBackwardPlan {
  std::shared_ptr<const SequenceChunks> chunks;
  PolynomialAttentionConfig config;
  bool wants_initial = false;
  ColumnSlice of_q = {}, of_k = {}, of_v = {};

  PolynomialAttentionOp::Inputs operator()(
      const BackwardOf<PolynomialAttentionOp>& backward) const {
    const PolynomialAttentionOp::Inputs& in = backward.saved.inputs;
    const PolynomialAttentionOp::Outputs& grads = backward.grads;
    PolynomialCall call = MakeCall({.q = in.q,
                                    .k = in.k,
                                    .v = in.v,
                                    .chunks = chunks,
                                    .initial_state = {.kv = in.initial_kv, .norm = in.initial_norm},
                                    .q_gradient = of_q,
                                    .k_gradient = of_k,
                                    .v_gradient = of_v},
                                   config);
    if (config.normalise) {
      call.args.out = ViewOf(kPolynomialKernel, backward.saved.out);
      call.args.norm_denom = MutableDataOrNull(backward.saved.norm_denom);
    } else {
      call.args.out = call.args.v;  // not read
    }
    PolynomialState dfinal;
    if (config.want_final_state) dfinal.kv = grads.final_kv;
    if (config.want_final_state && config.normalise) dfinal.norm = grads.final_norm;
    const PolynomialGradients result = RunBackward(call, grads.out, dfinal, wants_initial);
    return {.q = result.dq,
            .k = result.dk,
            .v = result.dv,
            .initial_kv = result.dinitial_state.kv,
            .initial_norm = result.dinitial_state.norm};
  }
};

void CheckStepTensors(const PolynomialAttentionStepInputs& in,
                      const PolynomialAttentionConfig& config, const PolynomialState& state) {
  const at::Tensor &q = in.q, &k = in.k, &v = in.v;
  HL_CHECK(q.dim() == 3 && v.dim() == 3 && q.sizes() == k.sizes() && q.size(0) == v.size(0) &&
               q.size(1) == v.size(1) && k.device() == q.device() && v.device() == q.device(),
           "polynomial attention step got q ", Describe(q), ", k ", Describe(k), ", v ",
           Describe(v), ". Use q and k [B, H, d], v [B, H, V] on one device.");
  if (q.is_cuda() && !kHasCudaKernels) FailWithoutCuda(kPolynomialKernel);
  CheckCounts(kPolynomialKernel, {q, v});
  const int64_t features =
      kernels::FeatureLayout(static_cast<int>(q.size(2)), config.weights).count;
  const std::vector<int64_t> sizes = {q.size(0), q.size(1), features, v.size(2)};
  const auto fits = [&](const at::Tensor& x, at::IntArrayRef want) {
    return FitsWith(q, x, want) && x.scalar_type() == ComputeType(q) && x.is_contiguous();
  };
  HL_CHECK(fits(state.kv, sizes) &&
               (!config.normalise || fits(state.norm, at::IntArrayRef(sizes).slice(0, 3))),
           "polynomial attention step: state.kv ", Describe(state.kv), " and state.norm ",
           Describe(state.norm), ". Use contiguous [B, H, F, V], which is ", at::IntArrayRef(sizes),
           ", and, normalised, [B, H, F] of ", DTypeName(ComputeType(q)), ".");
}

}  // namespace

PolynomialAttentionOutput PolynomialAttention(const PolynomialAttentionInputs& inputs,
                                              const PolynomialAttentionConfig& config) {
  if (inputs.segment != nullptr) return OverSegments(inputs, config);
  if (const auto in = HasState(inputs, config) ? ByFeatures(inputs, config) : std::nullopt) {
    LogRoute(kPolynomialKernel, "states by products with features");
    return AttendWithStates(*in, config);
  }
  const PolynomialAttentionOp::Inputs given = {.q = inputs.q,
                                               .k = inputs.k,
                                               .v = inputs.v,
                                               .initial_kv = inputs.initial_state.kv,
                                               .initial_norm = inputs.initial_state.norm};
  const auto wants = [](const at::Tensor& x) {
    return c10::GradMode::is_enabled() && x.defined() && x.requires_grad();
  };
  const bool wants_initial = wants(given.initial_kv) || wants(given.initial_norm);
  const bool differentiated = WillBeDifferentiated(given);
  const auto forward = [&]() -> ForwardOf<PolynomialAttentionOp> {
    PolynomialCall call = MakeCall(inputs, config);
    const auto [output, norm_denom] = RunForward(call, config.want_final_state, differentiated);
    return {.outputs = {.out = output.out,
                        .final_kv = output.final_state.kv,
                        .final_norm = output.final_state.norm,
                        .norm_denom = norm_denom},
            .saved = {.inputs = given,
                      .out = config.normalise ? output.out : at::Tensor(),
                      .norm_denom = norm_denom},
            .backward = PolynomialBackwardPlan{.chunks = call.inputs.chunks,
                                               .config = config,
                                               .wants_initial = wants_initial,
                                               .of_q = inputs.q_gradient,
                                               .of_k = inputs.k_gradient,
                                               .of_v = inputs.v_gradient},
            .num_constant = 1};
  };
  const PolynomialAttentionOp::Outputs out =
      Apply<PolynomialAttentionOp>({.name = "PolynomialAttention",
                                    .inputs = given,
                                    .undefined_grads = true,
                                    .forward = forward});
  return {.out = out.out,
          .final_state = {.kv = out.final_kv, .norm = out.final_norm},
          .norm_denom = out.norm_denom};
}

PolynomialState Summarise(const PolynomialAttentionInputs& inputs,
                          const PolynomialAttentionConfig& config) {
  if (const auto in = ByFeatures(inputs, config)) return SummariseByFeatures(*in, config);
  PolynomialAttentionInputs alone = inputs;
  alone.initial_state = {};
  PolynomialCall call = MakeCall(alone, config);
  call.form = kernels::PolynomialForm::kChunked;
  if (inputs.q.is_cuda()) return RunForward(call, true, false).output.final_state;
  const PolynomialState state = call.EmptyState();
  call.args.final_state = MutableDataOrNull(state.kv),
  call.args.final_norm = MutableDataOrNull(state.norm);
  call.args.out = call.args.v;  // not written
  kernels::cpu::Summarise(call.args, call.Plan());
  return state;
}

PolynomialState BackwardSummarise(const PolynomialAttentionInputs& inputs,
                                  const PolynomialAttentionConfig& config,
                                  const PolynomialAttentionOutput& output, const at::Tensor& dout) {
  if (const auto in = ByFeatures(inputs, config))
    return BackwardSummariseByFeatures(*in, config, output, dout);
  PolynomialCall call = MakeCall(inputs, config);
  call.form = kernels::PolynomialForm::kChunked;
  // Not read if not normalized.
  const at::Tensor out = config.normalise ? Rows(output.out) : call.inputs.v;
  call.args.out = ViewOf(kPolynomialKernel, out);
  call.args.norm_denom = MutableDataOrNull(output.norm_denom);
  if (inputs.q.is_cuda()) return RunBackward(call, dout, {}, true).dinitial_state;
  const at::Tensor rows = OutputGradient(call, dout);
  const PolynomialState gradient = call.EmptyState();
  kernels::cpu::BackwardSummarise({.forward = call.args,
                                   .dout = ViewOf(kPolynomialKernel, rows),
                                   .dq = call.args.q,  // dq, dk and dv are not written
                                   .dk = call.args.k,
                                   .dv = call.args.v,
                                   .dinitial_state = MutableDataOrNull(gradient.kv),
                                   .dinitial_norm = MutableDataOrNull(gradient.norm)},
                                  call.Plan());
  return gradient;
}

at::Tensor PolynomialAttentionStep(const PolynomialAttentionStepInputs& inputs,
                                   const PolynomialAttentionConfig& config,
                                   PolynomialState& state) {
  CheckStepTensors(inputs, config, state);
  const at::Tensor q = Rows(inputs.q), k = Rows(inputs.k), v = Rows(inputs.v);
  const at::Tensor out = at::empty(v.sizes(), v.options());
  const kernels::PolynomialAttentionStepArgs args = {.batch = static_cast<int>(q.size(0)),
                                                     .num_heads = static_cast<int>(q.size(1)),
                                                     .head_dim = static_cast<int>(q.size(2)),
                                                     .head_dim_v = static_cast<int>(v.size(2)),
                                                     .scale = config.scale,
                                                     .weights = config.weights,
                                                     .normalise = config.normalise,
                                                     .norm_eps = config.norm_eps,
                                                     .q = TokenViewOf(kPolynomialKernel, q),
                                                     .k = TokenViewOf(kPolynomialKernel, k),
                                                     .v = TokenViewOf(kPolynomialKernel, v),
                                                     .out = TokenViewOf(kPolynomialKernel, out),
                                                     .state = MutableDataOrNull(state.kv),
                                                     .norm = MutableDataOrNull(state.norm)};
  RunOn(
      q, [&] { kernels::cpu::Step(args); },
      [&](auto stream) { kernels::cuda::Step(args, stream); });
  return out;
}

}  // namespace halflife::ops
