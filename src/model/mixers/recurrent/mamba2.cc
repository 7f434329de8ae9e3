// Mamba-2 (Dao and Gu, 2024): a short convolution, then a state per head whose decay depends on the
// token, gated by SiLU. Parameters are named as in transformers' Mamba2.
//
//   dt = clamp(softplus(dt_raw + dt_bias), dt_limit_min, dt_limit_max)
//   S_t = e^{-e^{A_log} dt_t} S_{t-1} + (dt_t B_t)^T x_t,   y_t = C_t S_t + D x_t
//
// It is decay attention with queries C, keys B, key scales dt and values x. The heads of a group
// share B and C.
//
// Shapes: B batch, T seq_len, D model_dim, H heads, P head_dim, N state_size, G groups, I = H P.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/decay_attention/decay_attention_args.h"
#include "model/mixers/convolution/short_convolution.h"
#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/linear/linear.h"
#include "ops/rows/bias_map.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/state_space_gates.h"
#include "ops/rows/swiglu.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

constexpr int64_t kUsualHeadDim = 64;
constexpr double kTokensPerKeptSsdState = 256;  // backward keeps one state per 256 tokens

struct Mamba2Options : OptionsOf<Mamba2Options> {
  int64_t num_heads = 0, head_dim = 0;  // 0: for an inner width of 2 model_dim
  int64_t state_size = 128, num_groups = 1, conv_kernel = 4;
  bool use_bias = false, use_conv_bias = true;
  bool use_in_bias = false, use_out_bias = false;  // use_bias sets both.
  std::string norm = "gate_first";
  double dt_limit_min = 0, dt_limit_max = std::numeric_limits<double>::infinity();
  std::string a_init = "uniform";
  // Factors of the parts of in_proj's output, including its bias (Falcon-H1).
  double z_multiplier = 1, x_multiplier = 1, b_multiplier = 1, c_multiplier = 1, dt_multiplier = 1;

  bool has_in_bias() const { return use_bias || use_in_bias; }
  bool has_out_bias() const { return use_bias || use_out_bias; }
  int64_t inner() const { return num_heads * head_dim; }        // I
  int64_t shared() const { return num_groups * state_size; }    // G N
  int64_t convolved() const { return inner() + 2 * shared(); }  // x, B and C

  std::vector<Option> Fields() override {
    return {{"num_heads", &num_heads, {.min = 0}},
            {"head_dim", &head_dim, {.min = 0, .max = kernels::kMaxHeadDimV}},
            {"state_size", &state_size, {.max = kernels::kMaxHeadDimK}},
            {"num_groups", &num_groups},
            {"conv_kernel", &conv_kernel},
            {"use_bias", &use_bias},
            {"use_conv_bias", &use_conv_bias},
            {"norm", &norm, {.choices = {"gate_first", "norm_first", "none"}}},
            {"dt_limit_min", &dt_limit_min},
            {"dt_limit_max", &dt_limit_max},
            {"a_init", &a_init, {.choices = {"uniform", "heads"}}},
            {"z_multiplier", &z_multiplier},
            {"x_multiplier", &x_multiplier},
            {"b_multiplier", &b_multiplier},
            {"c_multiplier", &c_multiplier},
            {"dt_multiplier", &dt_multiplier},
            {"use_in_bias", &use_in_bias},
            {"use_out_bias", &use_out_bias}};
  }

  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    DeriveHeads(2 * sizes.model_dim, problems);
    problems.Require(num_heads == 0 || head_dim == 0 || num_heads <= kMaxWidth / head_dim,
                     num_heads, " heads of ", head_dim, " channels are too wide. Use at most ",
                     kMaxWidth, " channels in total.");
    problems.Require(head_dim <= kernels::kMaxHeadDimV, "num_heads ", num_heads, " gives heads of ",
                     head_dim, " channels. Use more heads, for at most ", kernels::kMaxHeadDimV,
                     " channels.");
    problems.Require(num_heads % num_groups == 0, "num_groups ", num_groups,
                     " does not divide num_heads ", num_heads, ". Use a divisor of ", num_heads,
                     ".");
    problems.Require(dt_limit_min >= 0 && dt_limit_min < dt_limit_max, "dt_limit_min ",
                     dt_limit_min, " and dt_limit_max ", dt_limit_max,
                     " leave no step sizes. Use limits with 0 <= dt_limit_min < dt_limit_max.");
    for (const auto& [name, multiplier] : {std::pair{"z_multiplier", z_multiplier},
                                           {"x_multiplier", x_multiplier},
                                           {"b_multiplier", b_multiplier},
                                           {"c_multiplier", c_multiplier},
                                           {"dt_multiplier", dt_multiplier}})
      problems.Require(std::isfinite(multiplier), name, " is ", multiplier,
                       ". Use a finite number (1 is usual).");
  }

 private:
  // Computes a head count or a head width of 0 from the inner width.
  void DeriveHeads(int64_t inner, ProblemList& problems) {
    if (num_heads == 0 && head_dim == 0) head_dim = std::gcd(kUsualHeadDim, inner);
    if (num_heads > 0 && head_dim > 0) return;
    const bool has_width = num_heads == 0;
    const int64_t given = has_width ? head_dim : num_heads;
    problems.Require(given > 0 && inner % given == 0, has_width ? "head_dim " : "num_heads ", given,
                     " does not divide twice the model_dim, ", inner, ". Use a divisor, or set ",
                     has_width ? "num_heads" : "head_dim", ", too.");
    if (given > 0) (has_width ? num_heads : head_dim) = inner / given;
  }
};

// Returns the rows of in_proj: z, x, B, C and dt.
std::vector<MatrixPart> PartsOfInput(const Mamba2Options& options) {
  const MatrixPart inner = {.rows = options.inner(), .heads = options.num_heads};
  const MatrixPart shared = {.rows = options.shared(), .heads = options.num_groups};
  return {inner, inner, shared, shared, {.rows = options.num_heads}};
}

class Mamba2 : public Mixer {
 public:
  Mamba2(const Mamba2Options& options, const PartContext& context)
      : options_(options), dim_(context.model_dim()), eps_(context.norm_eps) {
    const int64_t inner = options.inner(), num_heads = options.num_heads;
    in_ = DeclareMatrix(context, "in_proj.weight",
                        {.out = inner + options.convolved() + num_heads,
                         .in = dim_,
                         .init = Init::UniformOfFanIn(dim_),
                         .parts = PartsOfInput(options)});
    if (options.has_in_bias())
      in_bias_ = DeclareBias(context, "in_proj.bias", inner + options.convolved() + num_heads);
    conv_ = ShortConvolution(context, "conv1d",
                             {.channels = options.convolved(),
                              .taps = options.conv_kernel,
                              .bias = options.use_conv_bias,
                              .silu = true});
    DeclareHeads(context);
    if (options.norm != "none") norm_ = DeclareNorm(context, "norm.weight", inner);
    out_ = OutputProjection(
        context, inner, options.has_out_bias(),
        {.name = "out_proj",
         .init = Init::UniformOfFanIn(inner)
                     .Scaled(1 / std::sqrt(static_cast<double>(context.sizes.num_layers)))
                     .Scaled(context.output_init_scale)});
  }

  MixerTraits traits() const override {
    MixerTraits traits;
    traits.state = {
        {.name = "ssm", .shape = {options_.num_heads, options_.state_size, options_.head_dim}},
        conv_.tail("conv_tail")};
    return traits;
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const bool carried = call.carried();
    const Entered in = Enter(call.x);
    at::Tensor tail;  // after the slice
    const Operands scan = Split(conv_({.x = in.convolved.y,
                                       .slice = call.slice,
                                       .tail = carried ? call.initial->tensors[1] : at::Tensor(),
                                       .x_gradient = in.convolved.gradient},
                                      call.want_state ? &tail : nullptr));
    const ops::StepGateOutput gate = Steps(in.dt);
    const auto [y, last] = ops::DecayAttention(
        {.q = scan.q,
         .k = scan.k,
         .v = SplitHeads(scan.x, options_.head_dim),
         .log_decay = gate.log_decay,
         .key_scale = gate.step,
         .chunks = call.slice.chunks,
         .initial_state = {.kv = carried ? call.initial->tensors[0] : at::Tensor()},
         .segment = call.slice.segment,
         .q_gradient = scan.q_gradient,
         .k_gradient = scan.k_gradient},
        {.scale = 1});
    MixerOutput result = {.y = Leave(y.flatten(-2), scan.skipped, in.z), .state = {}};
    if (call.want_state) result.state.tensors = {last.kv, tail};
    return result;
  }

  at::Tensor Step(const at::Tensor& u, const SequenceSlice&, MixerState& state) const override {
    const Entered in = Enter(u);
    const Operands scan = Split(conv_.Step(in.convolved.y, state.tensors[1]));
    const ops::StepGateOutput gate = Steps(in.dt);
    ops::DecayState memory = {.kv = state.tensors[0]};  // updated in place
    const at::Tensor y = ops::DecayAttentionStep({.q = scan.q,
                                                  .k = scan.k,
                                                  .v = SplitHeads(scan.x, options_.head_dim),
                                                  .log_decay = gate.log_decay,
                                                  .key_scale = gate.step},
                                                 {.scale = 1}, memory);
    return Leave(y.flatten(-2), scan.skipped, in.z);
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const int64_t inner = options_.inner();
    const int64_t elements = dim_ * (2 * inner + options_.convolved() + options_.num_heads);
    return {
        .matmul = 2 * static_cast<double>(elements),
        .mixing = 4 * static_cast<double>(inner * options_.state_size) + conv_.flops_per_token()};
  }
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    const int64_t inner = options_.inner(), num_heads = options_.num_heads;
    // u; z, dt, and x, B and C before and after the convolution; y and the input of out_proj.
    // norm_first also keeps y + D x. A norm keeps its input or output, in two steps with groups.
    const bool has_norm = options_.norm != "none";
    const int64_t wide = 3 + (has_norm ? 1 : 0) + (options_.norm == "norm_first" ? 1 : 0) +
                         (has_norm && options_.num_groups > 1 ? 1 : 0);
    const int64_t elements = dim_ + wide * inner + 2 * options_.convolved() + num_heads;
    // Steps, log decays, and states.
    const double fp32 = 2 * static_cast<double>(num_heads) +
                        static_cast<double>(inner * options_.state_size) / kTokensPerKeptSsdState;
    return static_cast<double>(elements * bytes_per_element) + 4 * fp32;
  }
  double WorkspaceBytes(const GpuBatch& batch) const override;

 private:
  // Declares A_log, D and dt_bias, [H] each.
  void DeclareHeads(const PartContext& context) {
    const auto fp32 = [&](const char* name, const Init& init) {
      return DeclareFp32(context, name, {options_.num_heads}, init);
    };
    const bool by_head = options_.a_init == "heads";
    step_bias_ = fp32("dt_bias", BiasOfSteps(0.001, 0.1));
    // The rates are drawn in fp64: no rounding makes one 0, whose logarithm would be -inf.
    a_log_ = fp32("A_log", Init::Of([by_head](int64_t head, double uniform) {
                    return std::log(1 + (by_head ? static_cast<double>(head) : 15 * uniform));
                  }));
    skip_ = fp32("D", Init::Ones());
  }

  struct Entered {
    ops::LinearPart z, convolved, dt;  // [..., I], [..., I + 2 G N] and [..., H]
  };
  Entered Enter(const at::Tensor& u) const {
    const std::vector<int64_t> widths = {options_.inner(), options_.convolved(),
                                         options_.num_heads};
    if (!in_bias_.declared()) {
      const std::vector<ops::LinearPart> parts = ops::LinearInParts(u, *in_, widths);
      return Multiplied({.z = parts[0], .convolved = parts[1], .dt = parts[2]});
    }
    const auto parts = AddBias(ops::Linear(u, *in_), in_bias_).split_with_sizes(widths, -1);
    return Multiplied({.z = {parts[0]}, .convolved = {parts[1]}, .dt = {parts[2]}});
  }
  Entered Multiplied(Entered in) const {
    const auto multiply = [](ops::LinearPart& part, double factor) {
      if (factor != 1) part = {.y = part.y * factor};
    };
    multiply(in.z, options_.z_multiplier);
    multiply(in.dt, options_.dt_multiplier);
    const double x = options_.x_multiplier, b = options_.b_multiplier, c = options_.c_multiplier;
    if (x == b && b == c) {
      multiply(in.convolved, x);
      return in;
    }
    const auto parts = in.convolved.y.split_with_sizes(
        {options_.inner(), options_.shared(), options_.shared()}, -1);
    in.convolved = {.y = at::cat({parts[0] * x, parts[1] * b, parts[2] * c}, -1)};
    return in;
  }

  ops::StepGateOutput Steps(const ops::LinearPart& dt) const {
    return ops::StepGate(
        {.x = dt.y, .bias = *step_bias_, .a_log = *a_log_, .x_gradient = dt.gradient},
        {.least = options_.dt_limit_min, .most = options_.dt_limit_max});
  }

  struct Operands {
    at::Tensor q, k;        // C and B, [..., G, N]
    at::Tensor x, skipped;  // [..., I], the same values for the scan and for the skip connection
    ops::ColumnSlice q_gradient, k_gradient;
  };
  Operands Split(const at::Tensor& convolved) const {
    const ops::SplitColumnsOutput parts =
        ops::SplitColumns(convolved, {options_.inner(), options_.shared(), options_.shared()});
    const ops::LinearPart &b = parts.rest[0], &c = parts.rest[1];
    return {.q = SplitHeads(c.y, options_.state_size),
            .k = SplitHeads(b.y, options_.state_size),
            .x = parts.first,
            .skipped = parts.first_again,
            .q_gradient = c.gradient,
            .k_gradient = b.gradient};
  }

  // y, x [..., I] -> [..., D].
  at::Tensor Leave(const at::Tensor& y, const at::Tensor& x, const ops::LinearPart& z) const {
    if (options_.norm == "norm_first") {
      const at::Tensor normed = Norm(ops::SkipGate({.y = y, .x = x, .skip = *skip_}));
      return out_(ops::SwiGlu(z.y, normed, z.gradient));
    }
    const at::Tensor gated =
        ops::SkipGate({.y = y, .x = x, .skip = *skip_, .gate = z.y, .gate_gradient = z.gradient});
    return out_(norm_.declared() ? Norm(gated) : gated);
  }

  // Applies RMSNorm over each group of I / G channels, times the weight of each channel.
  at::Tensor Norm(const at::Tensor& y) const {
    if (options_.num_groups == 1) return ops::RmsNorm(y, *norm_, eps_);
    const int64_t width = options_.inner() / options_.num_groups;
    const at::Tensor ones = at::ones({width}, norm_->options().requires_grad(false));
    const at::Tensor normed = ops::RmsNorm(SplitHeads(y, width), ones, eps_).flatten(-2);
    return ops::BiasMap({{.x = normed, .bias = {}, .gain = *norm_}})[0];
  }

  Mamba2Options options_;
  int64_t dim_;
  double eps_;
  Parameter in_, in_bias_, step_bias_, a_log_, skip_, norm_;
  ShortConvolution conv_;
  OutputProjection out_;
};

double Mamba2::WorkspaceBytes(const GpuBatch& batch) const {
  kernels::DecayAttentionArgs args;
  args.batch = args.num_sequences = static_cast<int>(batch.batch);
  args.seq_len = static_cast<int>(batch.seq_len);
  args.num_heads = args.num_v_heads = args.num_decay_heads = static_cast<int>(options_.num_heads);
  args.num_q_heads = args.num_k_heads = static_cast<int>(options_.num_groups);
  args.decay_kind = kernels::DecayKind::kPerToken;
  args.head_dim_k = static_cast<int>(options_.state_size);
  args.head_dim_v = static_cast<int>(options_.head_dim);
  const auto rows = [&](int64_t width, int64_t dim) {  // heads of `dim`, in rows of `width`
    kernels::TensorView view;
    view.dtype = batch.bf16 ? DType::kBF16 : DType::kF32;
    view.stride_h = dim;
    view.stride_t = width;
    view.stride_b = width * args.seq_len;
    return view;
  };
  args.q = args.k = rows(options_.convolved(), options_.state_size);
  args.v = rows(options_.convolved(), options_.head_dim);
  args.out = rows(options_.inner(), options_.head_dim);
  constexpr int64_t kChunk = kernels::DefaultChunkSize(/*is_cuda=*/true);
  args.num_chunks = static_cast<int>(batch.batch * ((batch.seq_len + kChunk - 1) / kChunk));
  float present = 0;  // the sizes depend on which tensors are present, not on their values
  args.log_decay.data = args.key_scale.data = &present;
  const kernels::DecayAttentionPlan plan = MakePlan(args, batch.gpu);
  return static_cast<double>(
      std::max(ForwardWorkspaceBytes(args, plan), BackwardWorkspaceBytes(args, plan)));
}

}  // namespace

MixerVariant Mamba2Variant() { return MixerVariantOf<Mamba2Options, Mamba2>("mamba2"); }

}  // namespace halflife::model
