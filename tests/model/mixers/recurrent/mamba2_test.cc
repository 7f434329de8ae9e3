// Mamba-2: parameters, initial values, and the formula with every option.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "model/mixers/built_mixer.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/golden_draws.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/state_space_gates.h"

namespace halflife::model {
namespace {

using test::Close;
using test::Normal;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

MixerConfig Resolved(const std::vector<Assignment>& options, int64_t dim) {
  MixerConfig config("mamba2", options);
  EXPECT_THAT(config.Resolve({.model_dim = dim, .num_layers = 2}), testing::IsEmpty());
  return config;
}

// The first layer of two, with fp64 parameters, some of which are far from their initial values so
// that each of them matters.
struct Layer : test::BuiltMixer {
  explicit Layer(int64_t dim, const std::vector<Assignment>& options = {})
      : BuiltMixer(Resolved(options, dim), dim, at::kDouble, /*std_dev=*/0.02,
                   {.num_layers = 2, .norm_eps = 1e-5, .seed = 3}) {}
  // Replaces the initial values of biases, D and norm weights, which are mostly equal.
  void Vary() {
    uint64_t seed = 50;
    for (const char* name : {"in_proj.bias", "dt_bias", "D", "norm.weight", "out_proj.bias"})
      if (Has(name)) (*this)[name].add_(Normal((*this)[name].sizes().vec(), ++seed));
  }
};

struct Ssd {
  at::Tensor x, b, c;   // [T, H, P], [T, G, N], [T, G, N]
  at::Tensor dt;        // [T, H], the step sizes
  at::Tensor a_log, d;  // [H]
};
struct SsdResult {
  at::Tensor y;      // [T, H, P], with D x
  at::Tensor state;  // [H, N, P]
};

// Computes the recurrence of a row, token by token and head by head.
SsdResult Recur(const Ssd& in) {
  const int64_t seq_len = in.x.size(0), num_heads = in.x.size(1), num_groups = in.b.size(1);
  std::vector<at::Tensor> rows, states(num_heads);
  for (at::Tensor& state : states) state = at::zeros({in.b.size(2), in.x.size(2)}, at::kDouble);
  for (int64_t t = 0; t < seq_len; ++t) {
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < num_heads; ++h) {
      const int64_t group = h * num_groups / num_heads;
      const at::Tensor dt = in.dt[t][h], x = in.x[t][h];
      states[h] = (-in.a_log[h].exp() * dt).exp() * states[h] +
                  (dt * in.b[t][group]).unsqueeze(1) * x.unsqueeze(0);
      heads.push_back(at::matmul(in.c[t][group], states[h]) + in.d[h] * x);
    }
    rows.push_back(at::stack(heads));
  }
  return {at::stack(rows), at::stack(states)};
}

// Golden values of an independent fp64 implementation, which was compared with transformers.
TEST(Mamba2Test, GoldenValues) {
  constexpr int64_t kSeqLen = 6;
  test::GoldenDraws draw(105);
  Ssd in;
  in.x = draw({kSeqLen, 2, 2});
  in.b = draw({kSeqLen, 1, 3}), in.c = draw({kSeqLen, 1, 3});
  const at::Tensor raw = 2 * draw({kSeqLen, 2}) - 1;
  in.a_log = draw({2}), in.d = draw({2});
  const at::Tensor z = draw({kSeqLen, 4}), zero = at::zeros({2}, at::kDouble);
  const auto [step, log_decay] =
      ops::StepGate({.x = raw, .bias = zero, .a_log = in.a_log}, {.least = 0.05, .most = 1});
  in.dt = step;
  const std::vector<double> want_y = {0.203655084, -0.264678073, -0.143800221, 0.143100048};
  const SsdResult recurred = Recur(in);
  test::ExpectGolden(recurred.y[kSeqLen - 1], want_y);
  const auto [o, last] = ops::DecayAttention({.q = in.c.unsqueeze(0),
                                              .k = in.b.unsqueeze(0),
                                              .v = in.x.unsqueeze(0),
                                              .log_decay = log_decay.unsqueeze(0),
                                              .key_scale = step.unsqueeze(0)},
                                             {.scale = 1});
  const ops::SkipGateInputs skip = {
      .y = o.flatten(2)[0], .x = in.x.flatten(1), .skip = in.d, .gate = z};
  ops::SkipGateInputs ungated = skip;
  ungated.gate = at::Tensor();
  test::ExpectGolden(ops::SkipGate(ungated)[kSeqLen - 1], want_y);
  test::ExpectGolden(last.kv.square().sum(), {0.275300331});
  test::ExpectGolden(recurred.state.square().sum(), {0.275300331});
  test::ExpectGolden(
      ops::RmsNorm(ops::SkipGate(skip), at::ones({4}, at::kDouble), 1e-5)[kSeqLen - 1],
      {-1.018951893, -1.253938623, 0.858601385, -0.793059997});
}

// The options of a layer as the formula below reads them.
struct Form {
  int64_t num_heads, head_dim, state_size, num_groups, taps;
  bool bias, conv_bias;
  std::string norm;
  double least = 0, most = kNoLimit;
  std::vector<Assignment> Options() const {
    return {{"num_heads", num_heads},     {"head_dim", head_dim}, {"state_size", state_size},
            {"num_groups", num_groups},   {"conv_kernel", taps},  {"use_bias", bias},
            {"use_conv_bias", conv_bias}, {"norm", norm},         {"dt_limit_min", least},
            {"dt_limit_max", most}};
  }
};

// Computes RMSNorm over each group of channels, times the weight of each channel.
at::Tensor GroupNorm(const at::Tensor& y, const at::Tensor& weight, int64_t num_groups) {
  const at::Tensor groups = y.unflatten(-1, {num_groups, -1});
  return (groups / (groups.square().mean(-1, true) + 1e-5).sqrt()).flatten(-2) * weight;
}

// u [T, D] -> [T, D].
at::Tensor Formula(const at::Tensor& u, const Layer& p, const Form& form) {
  const int64_t inner = form.num_heads * form.head_dim, shared = form.num_groups * form.state_size,
                seq_len = u.size(0);
  const auto with_bias = [&](const at::Tensor& y, const char* name) {
    return p.Has(name) ? y + p[name] : y;
  };
  const auto in = with_bias(at::linear(u, p["in_proj.weight"]), "in_proj.bias")
                      .split_with_sizes({inner, inner + 2 * shared, form.num_heads}, 1);
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < seq_len; ++t) {
    at::Tensor sum = at::zeros({inner + 2 * shared}, at::kDouble);
    for (int64_t back = 0; back < form.taps && back <= t; ++back)
      sum = sum + in[1][t - back] * p["conv1d.weight"].select(2, form.taps - 1 - back).select(1, 0);
    rows.push_back(at::silu(with_bias(sum, "conv1d.bias")));
  }
  const auto parts = at::stack(rows).split_with_sizes({inner, shared, shared}, 1);
  const Ssd ssd = {.x = parts[0].unflatten(1, {form.num_heads, form.head_dim}),
                   .b = parts[1].unflatten(1, {form.num_groups, form.state_size}),
                   .c = parts[2].unflatten(1, {form.num_groups, form.state_size}),
                   .dt = at::softplus(in[2] + p["dt_bias"]).clamp(form.least, form.most),
                   .a_log = p["A_log"],
                   .d = p["D"]};
  at::Tensor y = Recur(ssd).y.flatten(1);
  if (form.norm == "norm_first") y = GroupNorm(y, p["norm.weight"], form.num_groups);
  y = y * at::silu(in[0]);
  if (form.norm == "gate_first") y = GroupNorm(y, p["norm.weight"], form.num_groups);
  return with_bias(at::linear(y, p["out_proj.weight"]), "out_proj.bias");
}

// Outputs, and the gradients of the input and of every parameter: one, two and as many groups as
// heads, each norm, with and without biases and limits.
TEST(Mamba2Test, IsTheRecurrence) {
  constexpr int64_t kSeqLen = 20, kDim = 6;
  for (const Form& form : {Form{4, 3, 5, 1, 4, false, true, "gate_first"},
                           Form{4, 3, 5, 2, 4, false, true, "gate_first", 0.4, 0.9},
                           Form{4, 3, 5, 4, 2, true, true, "gate_first"},
                           Form{4, 3, 2, 1, 3, true, false, "norm_first"},
                           Form{4, 3, 2, 2, 4, false, true, "norm_first", 0.3, kNoLimit},
                           Form{4, 3, 2, 4, 4, false, true, "none", 0, 0.9}}) {
    SCOPED_TRACE(form.norm + " with " + std::to_string(form.num_groups) + " groups");
    Layer layer(kDim, form.Options());
    layer.Vary();
    layer.ExpectFormula({2, kSeqLen, kDim}, {1e-12, 1e-12}, [&](const at::Tensor& u) {
      return at::stack({Formula(u[0], layer, form), Formula(u[1], layer, form)});
    });
  }
}

// Multipliers scale the rows of in_proj and of its bias.
TEST(Mamba2Test, MultipliersScaleTheRowsOfInProj) {
  constexpr int64_t kDim = 6;
  for (const bool same : {false, true}) {
    const Form form = {4, 3, 5, 2, 4, true, true, "none"};
    const double x = 2, b = same ? x : 0.5, c = same ? x : 4;
    std::vector<Assignment> options = form.Options();
    for (const Assignment& option : std::vector<Assignment>{{"z_multiplier", 3.0},
                                                            {"x_multiplier", x},
                                                            {"b_multiplier", b},
                                                            {"c_multiplier", c},
                                                            {"dt_multiplier", 0.25}})
      options.push_back(option);
    Layer layer(kDim, options);
    layer.Vary();
    Layer scaled(kDim, form.Options());
    for (const dist::ParamSpec& spec : layer.parameters().specs())
      scaled.Set(spec.name, layer[spec.name]);
    const at::Tensor rows =
        at::cat({at::full({12}, 3.0, at::kDouble), at::full({12}, x, at::kDouble),
                 at::full({10}, b, at::kDouble), at::full({10}, c, at::kDouble),
                 at::full({4}, 0.25, at::kDouble)});
    scaled.Set("in_proj.weight", scaled["in_proj.weight"] * rows.unsqueeze(1));
    scaled.Set("in_proj.bias", scaled["in_proj.bias"] * rows);
    const at::Tensor u = Normal({1, 9, kDim}, 1);
    EXPECT_TRUE(Close(layer.Run(u)[0], Formula(u[0], scaled, form), 1e-12));
  }
}

// A step has the same limits as training and prefill, and no gradient where one applies.
TEST(Mamba2Test, LimitsHoldEverywhere) {
  constexpr int64_t kSeqLen = 9, kDim = 6;
  const std::vector<Assignment> options = {{"num_heads", 4},
                                           {"head_dim", 3},
                                           {"state_size", 5},
                                           {"dt_limit_min", 0.2},
                                           {"dt_limit_max", 0.25}};
  Layer layer(kDim, options);
  layer["dt_bias"].zero_();
  layer["dt_bias"][1].fill_(5);    // always above the limits
  layer["dt_bias"][2].fill_(-30);  // always below them
  const at::Tensor u = Normal({2, kSeqLen, kDim}, 1);
  const auto slice = SequenceSlice::Contiguous(2, kSeqLen, 0, at::kCPU);
  for (const dist::ParamSpec& spec : layer.parameters().specs()) layer[spec.name].requires_grad_();
  const MixerOutput prefill = layer->Forward({.x = u, .slice = slice, .want_state = true});
  const at::Tensor dbias = torch::autograd::grad({prefill.y.square().sum()}, {layer["dt_bias"]})[0];
  EXPECT_EQ(dbias[1].item<double>(), 0);
  EXPECT_EQ(dbias[2].item<double>(), 0);

  MixerState state = EmptyState(layer->traits(), 2, at::kCPU, at::kDouble);
  const at::NoGradGuard no_grad;
  for (int64_t t = 0; t < kSeqLen; ++t) {
    const auto token = SequenceSlice::Contiguous(2, 1, t, at::kCPU);
    const at::Tensor y = layer->Step(u.select(1, t), token, state);
    EXPECT_TRUE(Close(y, prefill.y.select(1, t), 1e-12)) << t;
  }
  for (size_t i = 0; i < state.tensors.size(); ++i)
    EXPECT_TRUE(Close(state.tensors[i], prefill.state.tensors[i], 1e-12)) << i;

  const Layer free(kDim, {{"num_heads", 4}, {"head_dim", 3}, {"state_size", 5}});
  for (const dist::ParamSpec& spec : layer.parameters().specs())
    free[spec.name].copy_(layer[spec.name]);
  EXPECT_FALSE(Close(free.Run(u), prefill.y, 1e-3));
}

TEST(Mamba2Test, NamesItsParametersAsTransformers) {
  const Layer layer(16,
                    {{"head_dim", 8}, {"state_size", 5}, {"num_groups", 2}, {"use_bias", true}});
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const dist::ParamSpec& spec : layer.parameters().specs()) {
    shapes[spec.name] = spec.shape;
    EXPECT_EQ(spec.weight_decay, spec.shape.size() == 2) << spec.name;
  }
  const std::map<std::string, std::vector<int64_t>> want = {{"in_proj.weight", {88, 16}},
                                                            {"in_proj.bias", {88}},
                                                            {"conv1d.weight", {52, 1, 4}},
                                                            {"conv1d.bias", {52}},
                                                            {"dt_bias", {4}},
                                                            {"A_log", {4}},
                                                            {"D", {4}},
                                                            {"norm.weight", {32}},
                                                            {"out_proj.weight", {16, 32}},
                                                            {"out_proj.bias", {16}}};
  EXPECT_EQ(shapes, want);
}

TEST(Mamba2Test, HasTheBiasOfOneProjection) {
  for (const bool in : {false, true}) {
    const Layer layer(16, {{in ? "use_in_bias" : "use_out_bias", true}});
    EXPECT_EQ(layer.Has("in_proj.bias"), in);
    EXPECT_EQ(layer.Has("out_proj.bias"), !in);
  }
}

// In a bf16 model A_log and dt_bias keep their fp32 bits, so the decays are those of the fp32 model
// for the same inputs.
TEST(Mamba2Test, DecaysStayFp32InBf16Models) {
  constexpr int64_t kSeqLen = 40, kDim = 16;
  const std::vector<Assignment> options = {{"num_heads", 4}, {"head_dim", 8}, {"state_size", 4}};
  const Layer values(kDim, options);
  Layer layer(kDim, options);
  const auto bind = [&](bool bf16) {
    for (const dist::ParamSpec& spec : values.parameters().specs()) {
      const bool narrow = bf16 && spec.region == dist::Region::kCompute;
      layer.Bind(spec.name, values[spec.name].to(narrow ? at::kBFloat16 : at::kFloat));
    }
  };
  const auto slice = SequenceSlice::Contiguous(2, kSeqLen, 0, at::kCPU);
  const at::Tensor u = Normal({2, kSeqLen, kDim}, 1, at::kBFloat16);
  bind(true);
  for (const char* name : {"A_log", "dt_bias", "D", "norm.weight"})
    EXPECT_EQ(layer[name].scalar_type(), at::kFloat) << name;
  const MixerOutput narrow = layer->Forward({.x = u, .slice = slice, .want_state = true});
  EXPECT_EQ(narrow.y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(narrow.state.tensors[0].scalar_type(), at::kFloat);
  bind(false);
  const MixerOutput wide =
      layer->Forward({.x = u.to(at::kFloat), .slice = slice, .want_state = true});
  // About eight roundings to bf16, 2^-9 each, of values below 1.
  EXPECT_TRUE(Close(narrow.y, wide.y, 8 * 0x1p-9));
  EXPECT_TRUE(Close(narrow.state.tensors[0], wide.state.tensors[0], 8 * 0x1p-9));
}

// Returns the initial values of one parameter, without memory for the others.
at::Tensor Initial(const MixerConfig& config, const std::string& name, int64_t dim) {
  ParameterSet parameters;
  const auto mixer =
      MakeMixer(config, {.sizes = {.model_dim = dim, .num_layers = 1}, .parameters = &parameters});
  for (int i = 0; i < parameters.size(); ++i) {
    if (parameters.specs()[i].name != name) continue;
    at::Tensor values = at::empty(parameters.specs()[i].shape, at::kFloat);
    parameters.Initialise(i, 7, values.mutable_data_ptr<float>());
    return values.to(at::kDouble);
  }
  return {};
}

TEST(Mamba2Test, InitialValuesAreThoseOfMambaSsm) {
  constexpr int64_t kHeads = 1'000'000;
  const MixerConfig config("mamba2", {{"num_heads", kHeads}, {"head_dim", 1}, {"state_size", 1}});
  const at::Tensor a = Initial(config, "A_log", 1).exp();  // A_log = -inf would be 0
  EXPECT_GE(a.min().item<double>(), 1 - 1e-6);
  EXPECT_LE(a.max().item<double>(), 16 + 1e-5);
  // Within 5 standard errors.
  EXPECT_NEAR(a.mean().item<double>(), 8.5, 5 * 15 / std::sqrt(12.0 * kHeads));
  const at::Tensor logs = at::softplus(Initial(config, "dt_bias", 1)).log();
  const double low = std::log(0.001), high = std::log(0.1);
  EXPECT_GE(logs.min().item<double>(), low - 1e-4);
  EXPECT_LE(logs.max().item<double>(), high + 1e-4);
  EXPECT_NEAR(logs.mean().item<double>(), (low + high) / 2,
              5 * (high - low) / std::sqrt(12.0 * kHeads));
  EXPECT_TRUE((Initial(config, "D", 1) == 1).all().item<bool>());
}

TEST(Mamba2Test, RatesOfTransformersCountTheHeads) {
  const MixerConfig config("mamba2", {{"num_heads", 5}, {"head_dim", 2}, {"a_init", "heads"}});
  test::ExpectGolden(Initial(config, "A_log", 4).exp().round(), {1, 2, 3, 4, 5});
}

TEST(Mamba2Test, DerivesHeadsFromTheModel) {
  struct Case {
    int64_t dim, heads, width, want_heads, want_width;
  };
  for (const Case& c :
       {Case{2048, 0, 0, 64, 64}, Case{16, 0, 0, 1, 32}, Case{48, 0, 0, 3, 32},
        Case{2048, 0, 128, 32, 128}, Case{2048, 32, 0, 32, 128}, Case{48, 5, 7, 5, 7}}) {
    MixerConfig config("mamba2", {{"num_heads", c.heads}, {"head_dim", c.width}});
    EXPECT_THAT(config.Resolve({.model_dim = c.dim, .num_layers = 1}), testing::IsEmpty());
    EXPECT_EQ(config.Get<int64_t>("num_heads"), c.want_heads) << c.dim;
    EXPECT_EQ(config.Get<int64_t>("head_dim"), c.want_width) << c.dim;
  }
}

TEST(Mamba2Test, NamesTheFix) {
  const auto problems = [](const std::vector<Assignment>& options) {
    return MixerConfig("mamba2", options).Resolve({.model_dim = 48, .num_layers = 2});
  };
  EXPECT_THAT(
      problems({{"head_dim", 36}}),
      ElementsAre("mixer mamba2: head_dim 36 does not divide twice the model_dim, 96. Use a "
                  "divisor, or set num_heads, too."));
  EXPECT_THAT(
      problems({{"num_heads", 5}}),
      ElementsAre("mixer mamba2: num_heads 5 does not divide twice the model_dim, 96. Use a "
                  "divisor, or set head_dim, too."));
  EXPECT_THAT(
      problems({{"num_heads", 4}, {"num_groups", 3}}),
      ElementsAre("mixer mamba2: num_groups 3 does not divide num_heads 4. Use a divisor of 4."));
  EXPECT_THAT(
      problems({{"num_heads", 4}, {"dt_limit_min", 0.5}, {"dt_limit_max", 0.1}}),
      ElementsAre("mixer mamba2: dt_limit_min 0.5 and dt_limit_max 0.1 leave no step sizes. "
                  "Use limits with 0 <= dt_limit_min < dt_limit_max."));
  EXPECT_THAT(problems({{"num_heads", 4}, {"b_multiplier", kNoLimit}}),
              ElementsAre("mixer mamba2: b_multiplier is inf. Use a finite number (1 is usual)."));
  EXPECT_THAT(problems({{"num_heads", 4}, {"state_size", 257}}),
              ElementsAre(HasSubstr("at most 256")));
  EXPECT_THAT(problems({{"num_heads", 4}, {"norm", "rms"}}), ElementsAre(HasSubstr("gate_first")));
  EXPECT_THAT(
      MixerConfig("mamba2", {{"num_heads", 1}}).Resolve({.model_dim = 512, .num_layers = 2}),
      ElementsAre("mixer mamba2: num_heads 1 gives heads of 1024 channels. Use more heads, for at "
                  "most 512 channels."));
}

}  // namespace
}  // namespace halflife::model
