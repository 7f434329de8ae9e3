#include "ops/softmax_attention/softmax_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "kernels/softmax_attention/softmax_attention_args.h"
#include "ops/softmax_attention/composed.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gpu_route.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

constexpr const char* kSoftmaxKernel = "softmax attention";

void CheckShapes(const SoftmaxAttentionInputs& in, const SoftmaxAttentionConfig& config) {
  const at::Tensor &q = in.q, &k = in.k, &v = in.v;
  CheckDTypes(kSoftmaxKernel, {q, k, v});
  HL_CHECK(
      q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(0) == k.size(0) &&
          q.size(3) == k.size(3) && k.sizes().slice(0, 3) == v.sizes().slice(0, 3) &&
          k.size(1) >= q.size(1) && k.size(2) > 0 && q.size(2) % k.size(2) == 0,
      "softmax attention got q ", Describe(q), ", k ", Describe(k), ", v ", Describe(v),
      ". Use q [B, T, H, d], k [B, S, Hk, d], v [B, S, Hk, V] with S >= T and Hk a divisor of H.");
  HL_CHECK(k.device() == q.device() && v.device() == q.device() &&
               k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(),
           "softmax attention got q ", Describe(q), ", k ", Describe(k), ", v ", Describe(v),
           ". Use one dtype and device.");
  HL_CHECK(FitsWith(q, in.positions, {q.size(0), q.size(1)}), "softmax attention: positions ",
           Describe(in.positions), " do not fit q ", Describe(q),
           ". Use [B, T] on the same device.");
  CheckCounts(kSoftmaxKernel, {q, k, v});
  HL_CHECK(!in.far_q.defined() || (IsLike(q, in.far_q) && config.far_from > 0),
           "softmax attention: far_q ", Describe(in.far_q), " from distance ", config.far_from,
           " for q ", Describe(q),
           ". Use the shape, dtype and device of q, and far_from of at least 1.");
  HL_CHECK(!in.far_k.defined() || (in.far_q.defined() && IsLike(k, in.far_k)),
           "softmax attention: far_k ", Describe(in.far_k), " for k ", Describe(k),
           ". Use the shape, dtype and device of k, with a far_q.");
  HL_CHECK(!in.bias.defined() ||
               (in.bias.dim() == 2 && in.bias.size(0) == q.size(2) &&
                in.bias.size(1) >= k.size(1) && in.bias.scalar_type() == ComputeType(q)),
           "softmax attention: bias ", Describe(in.bias), " does not fit. Use [", q.size(2),
           ", at least ", k.size(1), "] of ", DTypeName(ComputeType(q)), ".");
  HL_CHECK(!in.bias_scale.defined() ||
               (in.bias.defined() && FitsWith(q, in.bias_scale, {q.size(0), q.size(1)}) &&
                in.bias_scale.scalar_type() == ComputeType(q)),
           "softmax attention: bias_scale ", Describe(in.bias_scale), " for bias ",
           Describe(in.bias), ". Use [", q.size(0), ", ", q.size(1), "] of ",
           DTypeName(ComputeType(q)), ", with a bias.");
  HL_CHECK(
      config.decay_rates.empty() ||
          (static_cast<int64_t>(config.decay_rates.size()) == q.size(3) && !in.far_q.defined() &&
           std::ranges::all_of(config.decay_rates,
                               [](double x) { return x >= kFastestDecay && x <= 0; })),
      "softmax attention: ", config.decay_rates.size(), " decay rates for heads of ", q.size(3),
      ". Use one rate per channel, from ", kFastestDecay, " to 0, and no far_q.");
  HL_CHECK(config.pattern.window == 0 || config.pattern.block == 0, "softmax attention: window ",
           config.pattern.window, " and block ", config.pattern.block, ". Use one of them.");
  HL_CHECK(!config.pattern.bidirectional || (k.size(1) == q.size(1) && config.pattern.block == 0 &&
                                             !in.far_q.defined() && config.decay_rates.empty()),
           "softmax attention: a bidirectional pattern of ", q.size(1), " queries and ", k.size(1),
           " keys. Use equally many, without blocks, far_q and decays.");
  const DropoutConfig& dropout = config.dropout;
  const int64_t num_past = k.size(1) - q.size(1);
  CheckSamples(q, dropout);
  HL_CHECK(dropout.rate == 0 || dropout.first_position == num_past,
           "softmax attention: dropout first_position is ", dropout.first_position,
           ", but there are ", num_past,
           " past keys. Set first_position to the number of past keys.");
}

struct SoftmaxAttentionOp {
  struct Inputs {
    at::Tensor q, k, v, far_q, far_k;
    at::Tensor bias;  // [H, N], from BiasTable()
  };
  struct Outputs {
    at::Tensor out;
    at::Tensor log_sum;  // not differentiable; undefined if nothing will be differentiated
  };
  struct Saved {
    Inputs inputs;
    VisibleKeys seen;
    at::Tensor out, log_sum, bias_scale;
  };
};

// The tensors of one call in the form that the kernels read.
struct SoftmaxCall {
  SoftmaxAttentionOp::Inputs in;
  at::Tensor bias_scale;  // [B, T]
  VisibleKeys seen;
  kernels::SoftmaxAttentionArgs args;
};

// Returns the biases ordered by decreasing distance; a bidirectional pattern continues to the
// distance of the first query and the last key. A tile of zeros pads both ends.
at::Tensor BiasTable(const at::Tensor& bias, const KeyPattern& pattern) {
  if (!bias.defined()) return bias;
  at::Tensor table = bias.flip(1);
  if (pattern.bidirectional) table = at::cat({table, bias.narrow(1, 1, bias.size(1) - 1)}, 1);
  return at::constant_pad_nd(table, {kernels::kAttentionTile, kernels::kAttentionTile});
}
// Returns the index of distance 0 in the table.
int64_t BiasZero(int64_t size, const KeyPattern& pattern) {
  return pattern.bidirectional ? (size - 1) / 2 : size - kernels::kAttentionTile - 1;
}

// Sets the shapes and options of the kernel arguments. No pointers are set except those to the
// decays.
kernels::SoftmaxAttentionArgs ArgsOf(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     bool has_far, const SoftmaxAttentionConfig& config) {
  kernels::SoftmaxAttentionArgs args;
  args.batch = static_cast<int>(q.size(0));
  args.num_queries = static_cast<int>(q.size(1));
  args.num_keys = static_cast<int>(k.size(1));
  args.num_past = args.num_keys - args.num_queries;
  args.num_heads = static_cast<int>(q.size(2));
  args.num_kv_heads = static_cast<int>(k.size(2));
  args.head_dim = static_cast<int>(q.size(3));
  args.head_dim_v = static_cast<int>(v.size(3));
  args.scale = config.scale;
  args.squared_relu = config.squared_relu;
  args.far_from = has_far ? static_cast<int>(config.far_from) : 0;
  args.num_sinks = static_cast<int>(config.pattern.sinks);
  args.decay_rates = config.decay_rates.empty() ? nullptr : config.decay_rates.data();
  return args;
}

kernels::PairDropout PairDropoutOf(const DropoutConfig& config) {
  if (config.rate == 0) return {};
  return {.samples = reinterpret_cast<const uint64_t*>(config.samples.const_data_ptr<int64_t>()),
          .key = config.key,
          .threshold = kernels::DropoutThreshold(config.rate),
          .scale = 1 / (1 - config.rate)};
}

void SetViews(SoftmaxCall& call, const SoftmaxAttentionConfig& config) {
  kernels::SoftmaxAttentionArgs& args = call.args;
  SoftmaxAttentionOp::Inputs& in = call.in;
  args = ArgsOf(in.q, in.k, in.v, in.far_q.defined(), config);
  const auto view = [](at::Tensor& x) {
    if (!x.defined()) return kernels::TensorView{};
    x = Rows(x);
    return ViewOf(kSoftmaxKernel, x);
  };
  args.q = view(in.q), args.k = view(in.k), args.v = view(in.v);
  args.far_q = view(in.far_q), args.far_k = view(in.far_k);
  args.own_far_keys = in.far_k.defined();
  args.first = call.seen.first.const_data_ptr<int32_t>();
  args.end = call.seen.end.const_data_ptr<int32_t>();
  args.sinks = call.seen.sinks.const_data_ptr<int32_t>();
  args.dropout = PairDropoutOf(config.dropout);
  if (!in.bias.defined()) return;
  in.bias = in.bias.contiguous();
  args.bias = in.bias.const_data_ptr();
  args.bias_stride = in.bias.size(1);
  args.bias_zero = BiasZero(args.bias_stride, config.pattern);
  if (!call.bias_scale.defined()) return;
  call.bias_scale = call.bias_scale.contiguous();
  args.bias_scale = call.bias_scale.const_data_ptr();
}

// The parameters that a backward needs in addition to the saved tensors.
struct SoftmaxBackwardPlan {
  SoftmaxAttentionConfig config;
  ColumnSlice q_gradient, k_gradient, v_gradient;

  SoftmaxAttentionOp::Inputs operator()(const BackwardOf<SoftmaxAttentionOp>& backward) const {
    const SoftmaxAttentionOp::Saved& saved = backward.saved;
    SoftmaxCall call = {
        .in = saved.inputs, .bias_scale = saved.bias_scale, .seen = saved.seen, .args = {}};
    SetViews(call, config);
    call.args.out = ViewOf(kSoftmaxKernel, saved.out);
    call.args.log_sum = saved.log_sum.data_ptr();
    const SoftmaxAttentionOp::Inputs& in = call.in;
    const at::Tensor dout = Rows(backward.grads.out.to(in.v.scalar_type()));
    const auto like = [](const at::Tensor& x) {
      return x.defined() ? at::empty(x.sizes(), x.options()) : at::Tensor();
    };
    const auto view = [](const at::Tensor& x) {
      return x.defined() ? ViewOf(kSoftmaxKernel, x) : kernels::TensorView{};
    };
    SoftmaxAttentionOp::Inputs grads = {.q = q_gradient.EmptyLike(in.q),
                                        .k = k_gradient.EmptyLike(in.k),
                                        .v = v_gradient.EmptyLike(in.v),
                                        .far_q = like(in.far_q),
                                        .far_k = like(in.far_k),
                                        .bias = {}};
    at::Tensor dbias;  // per sequence
    if (in.bias.defined() && backward.Wants(&SoftmaxAttentionOp::Inputs::bias))
      dbias = at::zeros({in.q.size(0), in.q.size(2), in.bias.size(1)}, in.bias.options());
    kernels::SoftmaxAttentionGradArgs args = {
        .forward = call.args,
        .dout = ViewOf(kSoftmaxKernel, dout),
        .dq = view(grads.q),
        .dk = view(grads.k),
        .dv = view(grads.v),
        .dfar_q = view(grads.far_q),
        .dfar_k = view(grads.far_k),
        .dbias = dbias.defined() ? dbias.mutable_data_ptr() : nullptr};
    RunOn(
        in.q, [&] { kernels::cpu::Backward(args); },
        [&](auto stream) {
          const at::Tensor workspace =
              at::empty({static_cast<int64_t>(kernels::cuda::WorkspaceBytes(args))},
                        in.q.options().dtype(at::kByte));
          args.workspace = workspace.data_ptr();
          kernels::cuda::Backward(args, stream);
        });
    if (dbias.defined()) grads.bias = dbias.sum(0);
    return grads;
  }
};

at::Tensor FusedAttention(const SoftmaxAttentionInputs& in, const SoftmaxAttentionConfig& config) {
  const SoftmaxAttentionOp::Inputs given = {.q = in.q,
                                            .k = in.k,
                                            .v = in.v,
                                            .far_q = in.far_q,
                                            .far_k = in.far_k,
                                            .bias = BiasTable(in.bias, config.pattern)};
  SoftmaxCall call = {
      .in = given,
      .bias_scale = in.bias_scale.defined() ? in.bias_scale.detach() : in.bias_scale,
      .seen = SeenBy(in, config),
      .args = {}};
  const bool differentiated = WillBeDifferentiated(given);
  const auto forward = [&]() -> ForwardOf<SoftmaxAttentionOp> {
    SetViews(call, config);
    kernels::SoftmaxAttentionArgs& args = call.args;
    const at::Tensor out =
        at::empty({in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}, in.q.options());
    args.out = ViewOf(kSoftmaxKernel, out);
    at::Tensor log_sum;
    if (differentiated)
      log_sum = at::empty(in.q.sizes().slice(0, 3), in.q.options().dtype(ComputeType(in.q)));
    args.log_sum = log_sum.defined() ? log_sum.mutable_data_ptr() : nullptr;
    RunOn(
        in.q, [&] { kernels::cpu::Forward(args); },
        [&](auto stream) { kernels::cuda::Forward(args, stream); });
    return {.outputs = {.out = out, .log_sum = log_sum},
            .saved = {.inputs = given,
                      .seen = call.seen,
                      .out = out,
                      .log_sum = log_sum,
                      .bias_scale = call.bias_scale},
            .backward = SoftmaxBackwardPlan{.config = config,
                                            .q_gradient = in.q_gradient,
                                            .k_gradient = in.k_gradient,
                                            .v_gradient = in.v_gradient},
            .num_constant = 1};
  };
  return Apply<SoftmaxAttentionOp>(
             {.name = "SoftmaxAttention", .inputs = given, .forward = forward})
      .out;
}

// Returns true if LibTorch's attention computes the same and has a fused form: one document per
// row, queries from the row's beginning, and values as wide as keys.
bool IsPlain(const SoftmaxAttentionInputs& in, const SoftmaxAttentionConfig& config) {
  return in.one_document && in.q.size(1) == in.k.size(1) && in.q.size(3) == in.v.size(3) &&
         config.pattern.reach() == 0 && !in.far_q.defined() && !in.bias.defined() &&
         config.decay_rates.empty() && !config.squared_relu && config.dropout.rate == 0;
}

// Returns true if the device's kernels support the call.
bool DeviceTakes([[maybe_unused]] const SoftmaxAttentionInputs& in,
                 [[maybe_unused]] const SoftmaxAttentionConfig& config) {
#ifdef HALFLIFE_WITH_CUDA
  if (!in.q.is_cuda()) return false;
  kernels::SoftmaxAttentionArgs args = ArgsOf(in.q, in.k, in.v, in.far_q.defined(), config);
  args.q.dtype = ToDType(kSoftmaxKernel, in.q);
  args.bias = in.bias.defined() ? in.bias.const_data_ptr() : nullptr;
  args.dropout = PairDropoutOf(config.dropout);
  const std::string why_not = kernels::cuda::WhyNot(args, SharedMemoryPerBlock(in.q));
  LogRoute(kSoftmaxKernel, why_not.empty() ? "pairs of tiles on tensor cores"
                                           : "LibTorch's calls in blocks of queries: " + why_not);
  return why_not.empty();
#else
  return false;
#endif
}

}  // namespace

at::Tensor SoftmaxAttention(const SoftmaxAttentionInputs& inputs,
                            const SoftmaxAttentionConfig& config) {
  CheckShapes(inputs, config);
  if (inputs.q.is_cpu()) return FusedAttention(inputs, config);
  if (!IsPlain(inputs, config))
    return DeviceTakes(inputs, config) ? FusedAttention(inputs, config)
                                       : ComposedSoftmaxAttention(inputs, config);
  LogRoute(kSoftmaxKernel, "LibTorch's attention: whole rows of one document");
  const auto by_head = [](const at::Tensor& x) { return x.transpose(1, 2); };
  return OrderedAttention({.q = by_head(inputs.q),
                           .k = by_head(inputs.k),
                           .v = by_head(inputs.v),
                           .causal = !config.pattern.bidirectional,
                           .scale = config.scale,
                           .q_gradient = inputs.q_gradient,
                           .k_gradient = inputs.k_gradient,
                           .v_gradient = inputs.v_gradient})
      .transpose(1, 2);
}

}  // namespace halflife::ops
