// The gated attention unit equals loops that implement its definition, and both equal golden
// values. Also tests the model around it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "model/language_model.h"
#include "model/mixers/built_mixer.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;

// The options, and their meaning for the loops.
struct Form {
  const char* name = "";
  bool causal = true;
  const char* normaliser = "softmax";
  double cos_scale = 0;
  int64_t info_length = 0;  // InfoScale with mode train; 0: none.
  bool bias = false;
  bool rotates = true;

  MixerConfig Config(int64_t width, int64_t key_dim) const {
    MixerConfig config("gau", {{"width", width},
                               {"key_dim", key_dim},
                               {"causal", causal},
                               {"normaliser", std::string(normaliser)},
                               {"bias", bias},
                               {"cos_scale", cos_scale},
                               {"rope_theta", rotates ? 10000.0 : 0.0}});
    if (info_length == 0) return config;
    config.Set("query_scale", std::string("info"));
    config.Set("query_scale_mode", std::string("train"));
    config.Set("query_scale_length", info_length);
    return config;
  }
  // Returns the factor on the scores of a query that sees n keys.
  double Scale(double n, double dim) const {
    if (std::string(normaliser) == "softmax_plus") return std::log(n) / std::log(512.0);
    if (info_length == 0) return 1;
    const auto of = [&](double keys) { return std::sqrt(1 - std::pow(keys, -2 / dim)); };
    return of(n) / of(static_cast<double>(info_length));
  }
};

// Returns q or k [T, d] rotated to the positions, with pairs (i, i + d/2), as unit vectors if
// scores are cosines.
at::Tensor Encoded(at::Tensor x, const at::Tensor& positions, const Form& form) {
  if (form.cos_scale > 0) x = x / x.norm(2, -1, true);
  if (!form.rotates) return x;
  x = x.clone();
  const int64_t half = x.size(1) / 2;
  auto values = x.accessor<double, 2>();
  for (int64_t t = 0; t < x.size(0); ++t)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[t].item<int64_t>()) *
                           std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      const double a = values[t][i], b = values[t][i + half];
      values[t][i] = a * std::cos(angle) - b * std::sin(angle);
      values[t][i + half] = a * std::sin(angle) + b * std::cos(angle);
    }
  return x;
}

struct Outcome {
  at::Tensor weights, y;  // [T, T], [T, D]
};
// Computes one row. `documents` [T] has the document number of each token.
Outcome ByLoops(const Form& form, const BuiltMixer& built, const at::Tensor& x,
                const std::vector<int64_t>& documents) {
  const auto biased = [&](const at::Tensor& y, const char* name) {
    return form.bias ? y + built[name] : y;
  };
  const auto project = [&](const char* name) {
    const std::string matrix = name;
    const at::Tensor y = x.matmul(built[matrix + ".weight"].t());
    return at::silu(biased(y, (matrix + ".bias").c_str()));
  };
  const at::Tensor u = project("u_proj"), v = project("v_proj"), z = project("z_proj");
  const int64_t seq_len = x.size(0), dim = z.size(1);
  at::Tensor positions = at::zeros({seq_len}, at::kLong);
  for (int64_t t = 1; t < seq_len; ++t)
    positions[t] = documents[t] == documents[t - 1] ? positions[t - 1].item<int64_t>() + 1 : 0;
  const bool unit = form.cos_scale > 0;
  const at::Tensor q = Encoded(biased(z * built["q_gain"], "q_offset"), positions, form),
                   k = Encoded(biased(z * built["k_gain"], "k_offset"), positions, form);
  const double scale = unit ? form.cos_scale : 1 / std::sqrt(static_cast<double>(dim));
  at::Tensor weights = at::zeros({seq_len, seq_len}, at::kDouble);
  for (int64_t i = 0; i < seq_len; ++i) {
    std::vector<int64_t> seen;
    for (int64_t j = 0; j < seq_len; ++j)
      if (documents[i] == documents[j] && (j <= i || !form.causal)) seen.push_back(j);
    const auto n = static_cast<double>(seen.size());
    double sum = 0;
    for (const int64_t j : seen) {
      const double score =
          scale * form.Scale(n, static_cast<double>(dim)) * q[i].dot(k[j]).item<double>();
      const bool squared = std::string(form.normaliser) == "squared_relu";
      const double weight = squared ? std::pow(std::max(score, 0.0), 2) : std::exp(score);
      weights[i][j] = weight;
      sum += squared ? 1 : weight;
    }
    weights[i] /= sum;
  }
  const at::Tensor y = (u * weights.matmul(v)).matmul(built["o_proj.weight"].t());
  return {.weights = weights, .y = biased(y, "o_proj.bias")};
}

at::Tensor Forwarded(const BuiltMixer& built, const at::Tensor& x) {  // [T, D], one document
  const auto slice = SequenceSlice::Contiguous(1, x.size(0), 0, at::kCPU);
  return built->Forward({.x = x.unsqueeze(0), .slice = slice}).y[0];
}

// Returns M[i][j] = amplitude sin(1.7 (i columns + j) + phase).
at::Tensor Waves(int64_t rows, int64_t columns, double phase, double amplitude) {
  return amplitude *
         at::sin(1.7 * at::arange(rows * columns, at::kDouble).view({rows, columns}) + phase);
}

// Builds the mixer with weights of D 6, e 8, d 4. The golden values pair neighbouring channels, the
// mixer pairs the halves of a head, so the channels of z are permuted.
BuiltMixer Golden(const Form& form) {
  BuiltMixer built(form.Config(8, 4), 6);
  const at::Tensor inner = Waves(6, 20, 0.7, 1.5).t(), order = at::tensor({0L, 2L, 1L, 3L});
  const auto halves = [&](const at::Tensor& x) { return x.index_select(0, order); };
  built.Set("u_proj.weight", inner.narrow(0, 0, 8));
  built.Set("v_proj.weight", inner.narrow(0, 8, 8));
  built.Set("z_proj.weight", halves(inner.narrow(0, 16, 4)));
  built.Set("q_gain", halves(at::tensor({1.0, 1.1, 1.2, 1.3}, at::kDouble)));
  built.Set("k_gain", halves(at::tensor({1.0, 0.9, 0.8, 0.7}, at::kDouble)));
  built.Set("o_proj.weight", Waves(8, 6, 1.3, 0.8).t());
  return built;
}

struct GoldenRow {
  Form form;
  char what;  // A: weights; o: output of the mixer.
  int64_t row;
  std::vector<double> values;
};
const std::vector<GoldenRow> kGolden = {
    {{.name = "softmax", .causal = false}, 'A', 1, {.197946, .474868, .163683, .163503}},
    {{.name = "softmax, causal"}, 'A', 1, {.294206, .705794, 0, 0}},
    {{.name = "softmax, causal"}, 'A', 3, {.207834, .198758, .273404, .320004}},
    {{.name = "softmax, causal"},
     'o',
     3,
     {.151791, -.177649, -.106013, .204967, .053196, -.218675}},
    {{.name = "softmax_plus", .causal = false, .normaliser = "softmax_plus"},
     'A',
     1,
     {.242031, .293983, .232022, .231965}},
    {{.name = "softmax_plus, causal", .normaliser = "softmax_plus"},
     'A',
     1,
     {.475712, .524288, 0, 0}},
    {{.name = "squared_relu", .normaliser = "squared_relu"}, 'A', 3, {0, 0, .001529, .013876}},
    {{.name = "squared_relu", .normaliser = "squared_relu"},
     'o',
     3,
     {.003157, -.002487, -.002516, .003135, .001709, -.003576}},
    {{.name = "CosScale", .cos_scale = 3},
     'o',
     3,
     {.200801, -.164908, -.158306, .205702, .105299, -.232836}},
    {{.name = "InfoScale", .info_length = 2},
     'o',
     3,
     {.153244, -.178470, -.107254, .206108, .054142, -.220060}},
    {{.name = "both", .cos_scale = 3, .info_length = 2},
     'o',
     3,
     {.209264, -.160825, -.167821, .204071, .115234, -.233765}}};

TEST(Gau, IsTheGoldenValues) {
  const at::Tensor x = Waves(4, 6, 0.1, 1.5);
  for (const GoldenRow& golden : kGolden) {
    SCOPED_TRACE(Concat(golden.form.name, ", ", golden.what, "[", golden.row, "]"));
    const BuiltMixer built = Golden(golden.form);
    const Outcome loops = ByLoops(golden.form, built, x, {0, 0, 0, 0});
    const at::Tensor out = Forwarded(built, x);
    EXPECT_TRUE(Close(out, loops.y, 1e-13));
    const at::Tensor got = golden.what == 'A' ? loops.weights : out;
    EXPECT_TRUE(Close(got[golden.row], at::tensor(golden.values, at::kDouble), 6e-7));
  }
}

const std::vector<Form> kForms = {
    {.name = "causal", .bias = true},
    {.name = "both ways", .causal = false},
    {.name = "softmax_plus", .normaliser = "softmax_plus"},
    {.name = "softmax_plus both ways", .causal = false, .normaliser = "softmax_plus"},
    {.name = "squared_relu", .normaliser = "squared_relu", .bias = true},
    {.name = "squared_relu both ways", .causal = false, .normaliser = "squared_relu"},
    {.name = "cosines both ways", .causal = false, .cos_scale = 5, .info_length = 16}};

// Rows of several documents, longer than a tile of the kernel. fp32 rounds scores of a few units
// and the cos and sin of the rotation. bf16 rounds every operand by 2^-9.
TEST(Gau, IsTheDefinition) {
  const std::vector<int32_t> cu_seqlens = {0, 1, 40, 90};
  const auto slice = SequenceSlice::Packed(1, 90, cu_seqlens, at::kCPU);
  std::vector<int64_t> documents(90, 2);
  std::fill_n(documents.begin(), 40, 1);
  documents[0] = 0;
  const at::Tensor x = Normal({90, 16}, 1);
  for (Form form : kForms) {
    SCOPED_TRACE(form.name);
    const auto within = [&](double tolerance) {
      BuiltMixer built(form.Config(24, 8), 16);
      built.FillZeros();
      const at::Tensor want = ByLoops(form, built, x, documents).y;
      EXPECT_TRUE(
          Close(built->Forward({.x = x.unsqueeze(0), .slice = slice}).y[0], want, tolerance));
      return want;
    };
    form.rotates = false;
    within(1e-10);  // The squared length of a vector has 1e-12 added.
    form.rotates = true;
    const at::Tensor want = within(1e-10);
    const auto narrow = [&](at::ScalarType dtype) {
      BuiltMixer built(form.Config(24, 8), 16, dtype);
      built.FillZeros();
      return built->Forward({.x = x.to(dtype).unsqueeze(0), .slice = slice}).y[0];
    };
    EXPECT_TRUE(Close(narrow(at::kFloat), want, 1e-5));
    EXPECT_TRUE(Close(narrow(at::kBFloat16), want, 2e-2));
  }
}

// If no GPU kernel supports the call, each weight is stored twice in fp32.
TEST(Gau, PlansTheWeightsThatASquaredReluKeeps) {
  const auto bytes_per_key = [](int64_t key_dim, int64_t bytes_per_element,
                                const char* positions = "none") {
    const BuiltMixer built(Form{.normaliser = "squared_relu"}.Config(24, key_dim), 16, at::kFloat,
                           0.3, {.positions = PositionsConfig(positions)});
    const auto bytes = [&](int64_t seq_len) {
      return built->GpuActivationBytesPerToken(seq_len, bytes_per_element);
    };
    EXPECT_EQ(built->ActivationBytesPerToken(2048, bytes_per_element),
              built->ActivationBytesPerToken(1024, bytes_per_element));
    return (bytes(2048) - bytes(1024)) / 1024;
  };
  EXPECT_EQ(bytes_per_key(128, 2), 0);
  EXPECT_EQ(bytes_per_key(128, 2, "alibi"), 0);
  EXPECT_EQ(bytes_per_key(130, 2), 8) << "too wide";
  EXPECT_EQ(bytes_per_key(128, 4), 8) << "fp32";
  EXPECT_EQ(bytes_per_key(128, 2, "xpos"), 8) << "decays";
  EXPECT_EQ(bytes_per_key(128, 2, "rerope"), 8) << "far pairs";
}

// GAU-alpha with 24 layers, and with six as in its experiments on length.
ModelConfig GauAlpha(int64_t num_layers) {
  ModelConfig config = {.vocab_size = 12000, .model_dim = 768, .num_layers = num_layers};
  config.initializer = "fan_in";
  config.embedding.num_segments = 2;
  config.embedding.norm = true;
  config.block = BlockConfig("post_norm");
  config.norm = NormConfig("rms_norm", {{"eps", 1e-12}, {"weight", false}});
  config.mixer =
      MixerConfig("gau", {{"causal", false}, {"normaliser", std::string("softmax_plus")}});
  config.channel_mixer = ChannelMixerConfig("none");
  config.head.tied = true;
  config.objective = ObjectiveConfig("masked_token", {{"mask_id", int64_t{4}}});
  return config;
}

TEST(GauAlpha, HasThePublishedParameters) {
  EXPECT_EQ(LanguageModel(GauAlpha(24)).CountParameters().total(), 96'517'632);
  EXPECT_EQ(LanguageModel(GauAlpha(6)).CountParameters().total(), 31'042'560);
}

// Standard deviations are within 5 standard errors, std / sqrt(2 n), of the nominal ones. No value
// is beyond the truncation at 2 x 1.1368 of them.
TEST(GauAlpha, StartsByInputsAndDepth) {
  const LanguageModel model(GauAlpha(24));
  const auto check = [&](const std::string& name, double nominal) {
    const ParameterSet& parameters = model.parameters();
    const auto& specs = parameters.specs();
    const auto found = std::ranges::find(specs, name, &dist::ParamSpec::name);
    ASSERT_NE(found, specs.end()) << name;
    at::Tensor values = at::empty(found->shape, at::kFloat);
    parameters.Initialise(static_cast<int>(found - specs.begin()), 1,
                          values.mutable_data_ptr<float>());
    const double std_dev = values.to(at::kDouble).std().item<double>();
    EXPECT_NEAR(std_dev, nominal,
                5 * nominal / std::sqrt(2.0 * static_cast<double>(values.numel())))
        << name;
    EXPECT_LE(values.abs().max().item<double>(), 2.0001 * 1.13685 * nominal) << name;
  };
  check("layers.0.attn.u_proj.weight", 0.0125094);  // 24^(-1/3) / sqrt(768)
  check("layers.3.attn.o_proj.weight", 0.0088455);  // 1,536 inputs.
  check("embeddings.weight", 0.0125094);
}

// Every layer and the embedding end with a norm, so the stream has a mean square of 1.
TEST(GauAlpha, NormsItsStream) {
  ModelConfig config = GauAlpha(2);
  config.vocab_size = 50, config.model_dim = 32;
  config.mixer.Set("key_dim", int64_t{16});
  LanguageModel model(config);
  model.BindOwnMemory(3, /*requires_grad=*/false);
  const auto slice = SequenceSlice::Contiguous(2, 20, 0, at::kCPU);
  const at::Tensor tokens = at::arange(40).view({2, 20});
  const at::Tensor hidden = model.Hidden(tokens, {.slice = &slice});
  EXPECT_TRUE(Close(hidden.square().mean(-1), at::zeros({2, 20}) + 1, 1e-6));
  ModelState state = model.EmptyState(2);
  EXPECT_HL_ERROR(model.Step(tokens.select(1, 0), state), ExitCode::kUsage, "sees later tokens");
}

TEST(GauTest, SaysWhatDoesNotFit) {
  const auto make = [](const std::vector<Assignment>& options,
                       const PositionsConfig& positions = {}) {
    MixerConfig config("gau", {{"key_dim", int64_t{8}}});
    for (const Assignment& option : options) config.Set(option.name, option.value);
    BuiltMixer(config, 16, at::kDouble, 0.3, {.positions = positions});
  };
  using Word = std::string;
  EXPECT_HL_ERROR(make({{"key_dim", int64_t{7}}}), ExitCode::kUsage, "must be even");
  EXPECT_HL_ERROR(make({{"normaliser", Word("relu")}}), ExitCode::kUsage, "squared_relu");
  EXPECT_HL_ERROR(make({{"normaliser", Word("softmax_plus")},
                        {"query_scale", Word("log")},
                        {"query_scale_length", int64_t{64}}}),
                  ExitCode::kUsage, "normaliser softmax_plus with query_scale log");
  EXPECT_HL_ERROR(make({{"causal", false}, {"block", int64_t{8}}}), ExitCode::kUsage,
                  "block 8 in a layer that sees later tokens");
  make({{"normaliser", Word("softmax_plus")}, {"query_scale_bias", true}},
       PositionsConfig("alibi"));
  EXPECT_HL_ERROR(make({{"query_scale_bias", true}}, PositionsConfig("alibi")), ExitCode::kUsage,
                  "query_scale_bias without query_scale");
  for (const char* name : {"t5", "xpos", "rerope", "streaming_llm"})
    EXPECT_HL_ERROR(make({{"causal", false}}, PositionsConfig(name)), ExitCode::kUsage,
                    "positions support only earlier ones");
  for (const char* name : {"yarn", "alibi", "kerple_power"})
    make({{"causal", false}}, PositionsConfig(name));
  ModelConfig next = GauAlpha(1);
  next.objective = {};
  EXPECT_HL_ERROR(LanguageModel{next}, ExitCode::kUsage, "objective next_token", "gau",
                  "sees later tokens. Use a causal mixer or the objective masked_token.");
}

}  // namespace
}  // namespace halflife::model
