// The model around the mixers: parameter names, loss, tying, dropout, costs.
#include "model/language_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/silu.h>
#include <gmock/gmock.h>

#include <map>
#include <string>

#include "model/mixer_forms.h"
#include "model/model_cost.h"
#include "ops/gradient_check.h"
#include "ops/rows/dropout.h"
#include "ops/softmax_attention/softmax_attention.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::Close;
using testing::ElementsAre;
using testing::Pair;
using testing::UnorderedElementsAre;

ModelConfig Tiny(const std::string& mixer = "retention") {
  return {.vocab_size = 37,
          .model_dim = 32,
          .num_layers = 2,
          .initializer_range = 0.2,
          .mixer = TestForms(mixer).front(),
          .channel_mixer = ChannelMixerConfig("swiglu", {{"width", 48}})};
}

at::Tensor Tokens(int64_t batch, int64_t seq_len, uint64_t seed, int64_t vocab = 37) {
  return (test::Uniform({batch, seq_len}, seed) * static_cast<double>(vocab)).to(at::kLong);
}

// Replaces every parameter by an fp64 copy.
void Widen(LanguageModel& model) {
  for (int i = 0; i < model.parameters().size(); ++i)
    model.parameters().Bind(i, model.parameters().tensor(i).detach().to(at::kDouble));
}

std::map<std::string, std::vector<int64_t>> Shapes(const ModelConfig& config) {
  const LanguageModel model(config);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const dist::ParamSpec& spec : model.parameters().specs()) shapes[spec.name] = spec.shape;
  return shapes;
}

// Optimizers of matrices treat the parts of a hidden layer's matrices one by one, and everything
// else element by element.
TEST(ParameterParts, EveryMatrixOfAHiddenLayerHasThem) {
  for (const std::string& mixer : NamesOf(kMixers)) {
    const LanguageModel model(Tiny(mixer));
    for (const dist::ParamSpec& spec : model.parameters().specs()) {
      const auto contains = [&](const char* part) {
        return spec.name.find(part) != std::string::npos;
      };
      const bool is_table = contains("embeddings") || contains("lm_head");
      const bool is_matrix = spec.shape.size() == 2 && spec.weight_decay &&
                             spec.region == dist::Region::kCompute && !is_table;
      EXPECT_EQ(!spec.parts.empty(), is_matrix) << mixer << ": " << spec.name;
      int64_t rows = 0;
      for (const MatrixPart& part : spec.parts) {
        EXPECT_EQ(part.rows % part.heads, 0) << mixer << ": " << spec.name;
        rows += part.rows;
      }
      EXPECT_EQ(rows, is_matrix ? spec.shape[0] : 0) << mixer << ": " << spec.name;
    }
  }
}

TEST(ParameterNames, FrameOfEveryModel) {
  ModelConfig config = Tiny();
  config.num_layers = 1;
  std::map<std::string, std::vector<int64_t>> frame;
  for (const auto& [name, shape] : Shapes(config))
    if (name.find(".attn.") == std::string::npos) frame[name] = shape;
  EXPECT_THAT(frame,
              UnorderedElementsAre(Pair("embeddings.weight", ElementsAre(37, 32)),
                                   Pair("layers.0.attn_norm.weight", ElementsAre(32)),
                                   Pair("layers.0.mlp_norm.weight", ElementsAre(32)),
                                   Pair("layers.0.mlp.gate_proj.weight", ElementsAre(48, 32)),
                                   Pair("layers.0.mlp.up_proj.weight", ElementsAre(48, 32)),
                                   Pair("layers.0.mlp.down_proj.weight", ElementsAre(32, 48)),
                                   Pair("norm.weight", ElementsAre(32)),
                                   Pair("lm_head.weight", ElementsAre(37, 32))));
}

std::map<std::string, std::vector<int64_t>> MixerShapes(const std::string& mixer,
                                                        const std::vector<Assignment>& options) {
  ModelConfig config = Tiny(mixer);
  config.num_layers = 1;
  config.mixer = MixerConfig(mixer, options);
  const std::string prefix = "layers.0.attn.";
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, shape] : Shapes(config))
    if (name.rfind(prefix, 0) == 0) shapes[name.substr(prefix.size())] = shape;
  return shapes;
}

// The parameter layouts of fla's layers, with D = 32.
TEST(ParameterNames, Retention) {
  EXPECT_THAT(MixerShapes("retention", {{"num_heads", 4}, {"num_kv_heads", 2}}),
              UnorderedElementsAre(Pair("q_proj.weight", ElementsAre(32, 32)),
                                   Pair("k_proj.weight", ElementsAre(16, 32)),
                                   Pair("v_proj.weight", ElementsAre(32, 32)),
                                   Pair("g_proj.weight", ElementsAre(64, 32)),
                                   Pair("g_norm_swish_gate.weight", ElementsAre(16)),
                                   Pair("o_proj.weight", ElementsAre(32, 64))));
  EXPECT_THAT(MixerShapes("retention", {{"num_heads", 2}, {"use_output_gate", false}}),
              UnorderedElementsAre(Pair("q_proj.weight", ElementsAre(32, 32)),
                                   Pair("k_proj.weight", ElementsAre(32, 32)),
                                   Pair("v_proj.weight", ElementsAre(64, 32)),
                                   Pair("g_norm.weight", ElementsAre(32)),
                                   Pair("o_proj.weight", ElementsAre(32, 64))));
}

TEST(ParameterNames, Gla) {
  EXPECT_THAT(
      MixerShapes("gla", {{"num_heads", 2}, {"use_short_conv", true}}),
      UnorderedElementsAre(
          Pair("q_proj.weight", ElementsAre(16, 32)), Pair("k_proj.weight", ElementsAre(16, 32)),
          Pair("v_proj.weight", ElementsAre(32, 32)), Pair("g_proj.weight", ElementsAre(32, 32)),
          Pair("gk_proj.0.weight", ElementsAre(16, 32)),
          Pair("gk_proj.1.weight", ElementsAre(16, 16)), Pair("gk_proj.1.bias", ElementsAre(16)),
          Pair("q_conv1d.weight", ElementsAre(16, 1, 4)),
          Pair("k_conv1d.weight", ElementsAre(16, 1, 4)),
          Pair("v_conv1d.weight", ElementsAre(32, 1, 4)),
          Pair("g_norm_swish_gate.weight", ElementsAre(16)),
          Pair("o_proj.weight", ElementsAre(32, 32))));
}

TEST(ParameterNames, DeltaRule) {
  EXPECT_THAT(
      MixerShapes("delta_net", {{"num_heads", 2}, {"use_output_gate", true}}),
      UnorderedElementsAre(
          Pair("q_proj.weight", ElementsAre(32, 32)), Pair("k_proj.weight", ElementsAre(32, 32)),
          Pair("v_proj.weight", ElementsAre(32, 32)), Pair("b_proj.weight", ElementsAre(2, 32)),
          Pair("g_proj.weight", ElementsAre(32, 32)),
          Pair("q_conv1d.weight", ElementsAre(32, 1, 4)),
          Pair("k_conv1d.weight", ElementsAre(32, 1, 4)),
          Pair("v_conv1d.weight", ElementsAre(32, 1, 4)), Pair("o_norm.weight", ElementsAre(16)),
          Pair("o_proj.weight", ElementsAre(32, 32))));
  EXPECT_THAT(
      MixerShapes("gated_delta_net",
                  {{"num_heads", 2}, {"num_v_heads", 4}, {"head_dim", 8}, {"expand_v", 2.0}}),
      UnorderedElementsAre(
          Pair("q_proj.weight", ElementsAre(16, 32)), Pair("k_proj.weight", ElementsAre(16, 32)),
          Pair("v_proj.weight", ElementsAre(64, 32)), Pair("g_proj.weight", ElementsAre(64, 32)),
          Pair("a_proj.weight", ElementsAre(4, 32)), Pair("b_proj.weight", ElementsAre(4, 32)),
          Pair("A_log", ElementsAre(4)), Pair("dt_bias", ElementsAre(4)),
          Pair("q_conv1d.weight", ElementsAre(16, 1, 4)),
          Pair("k_conv1d.weight", ElementsAre(16, 1, 4)),
          Pair("v_conv1d.weight", ElementsAre(64, 1, 4)), Pair("o_norm.weight", ElementsAre(16)),
          Pair("o_proj.weight", ElementsAre(32, 64))));
  EXPECT_THAT(
      MixerShapes("kda", {{"num_heads", 2}, {"expand_v", 0.5}, {"use_short_conv", false}}),
      UnorderedElementsAre(
          Pair("q_proj.weight", ElementsAre(32, 32)), Pair("k_proj.weight", ElementsAre(32, 32)),
          Pair("v_proj.weight", ElementsAre(16, 32)), Pair("b_proj.weight", ElementsAre(2, 32)),
          Pair("f_proj.0.weight", ElementsAre(8, 32)), Pair("f_proj.1.weight", ElementsAre(32, 8)),
          Pair("A_log", ElementsAre(2)), Pair("dt_bias", ElementsAre(32)),
          Pair("g_proj.0.weight", ElementsAre(8, 32)), Pair("g_proj.1.weight", ElementsAre(16, 8)),
          Pair("g_proj.1.bias", ElementsAre(16)), Pair("o_norm.weight", ElementsAre(8)),
          Pair("o_proj.weight", ElementsAre(32, 16))));
}

TEST(ParameterNames, GatedStates) {
  EXPECT_THAT(MixerShapes("hgrn2", {{"num_heads", 2}, {"use_short_conv", true}}),
              UnorderedElementsAre(Pair("q_proj.weight", ElementsAre(32, 32)),
                                   Pair("f_proj.weight", ElementsAre(32, 32)),
                                   Pair("i_proj.weight", ElementsAre(32, 32)),
                                   Pair("q_conv1d.weight", ElementsAre(32, 1, 4)),
                                   Pair("f_conv1d.weight", ElementsAre(32, 1, 4)),
                                   Pair("i_conv1d.weight", ElementsAre(32, 1, 4)),
                                   Pair("g_norm.weight", ElementsAre(32)),
                                   Pair("o_proj.weight", ElementsAre(32, 32))));
  EXPECT_THAT(
      MixerShapes("gsa",
                  {{"num_heads", 4}, {"num_kv_heads", 2}, {"expand_k", 0.5}, {"num_slots", 6}}),
      UnorderedElementsAre(
          Pair("q_proj.weight", ElementsAre(16, 32)), Pair("k_proj.weight", ElementsAre(8, 32)),
          Pair("v_proj.weight", ElementsAre(16, 32)), Pair("f_proj.weight", ElementsAre(12, 32)),
          Pair("g_norm.weight", ElementsAre(32)), Pair("o_proj.weight", ElementsAre(32, 32))));
}

TEST(ParameterNames, Softmax) {
  EXPECT_THAT(
      MixerShapes("softmax", {{"num_heads", 4}, {"num_kv_heads", 2}, {"qk_norm", true}}),
      UnorderedElementsAre(
          Pair("q_proj.weight", ElementsAre(32, 32)), Pair("k_proj.weight", ElementsAre(16, 32)),
          Pair("v_proj.weight", ElementsAre(16, 32)), Pair("q_norm.weight", ElementsAre(8)),
          Pair("k_norm.weight", ElementsAre(8)), Pair("o_proj.weight", ElementsAre(32, 32))));
}

// The parameter layout of DeepSeek-V2 and Kimi Linear.
TEST(ParameterNames, Mla) {
  const std::vector<Assignment> heads = {{"num_heads", 2},        {"kv_lora_rank", 12},
                                         {"qk_nope_head_dim", 8}, {"qk_rope_head_dim", 4},
                                         {"v_head_dim", 6},       {"q_lora_rank", 10}};
  EXPECT_THAT(MixerShapes("mla", heads),
              UnorderedElementsAre(Pair("q_a_proj.weight", ElementsAre(10, 32)),
                                   Pair("q_a_layernorm.weight", ElementsAre(10)),
                                   Pair("q_b_proj.weight", ElementsAre(24, 10)),
                                   Pair("kv_a_proj_with_mqa.weight", ElementsAre(16, 32)),
                                   Pair("kv_a_layernorm.weight", ElementsAre(12)),
                                   Pair("kv_b_proj.weight", ElementsAre(28, 12)),
                                   Pair("o_proj.weight", ElementsAre(32, 12))));
}

// Some of the parameters of fla's RWKV7Attention. Layer 0 has no v_lora.
TEST(ParameterNames, Rwkv7) {
  using testing::Contains;
  const auto shapes = MixerShapes("rwkv7", {{"head_dim", 8}, {"gate_low_rank_dim", 5}});
  EXPECT_THAT(shapes, Contains(Pair("x_r", ElementsAre(32))));
  EXPECT_THAT(shapes, Contains(Pair("r_k", ElementsAre(4, 8))));
  EXPECT_THAT(shapes, Contains(Pair("w_lora.lora.0.weight", ElementsAre(64, 32))));
  EXPECT_THAT(shapes, Contains(Pair("g_lora.lora.2.weight", ElementsAre(32, 5))));
  EXPECT_THAT(shapes, Contains(Pair("g_norm.bias", ElementsAre(32))));
  for (const auto& [name, shape] : shapes) EXPECT_FALSE(name.starts_with("v_lora")) << name;
}

// The parameter layout of Mamba2Mixer in transformers and fla.
// The values of layer 0 may be missing, or it may not publish them. A plan refuses the model, too.
TEST(LanguageModelTest, ValuesThatNoLayerPublishesAreRefused) {
  const MixerConfig rwkv7("rwkv7", {{"head_dim", 8}}),
      own_values("rwkv7", {{"head_dim", 8}, {"value_residual", false}});
  ModelConfig config = {.vocab_size = 9, .model_dim = 16, .num_layers = 2, .mixer = rwkv7};
  const LanguageModel accepted(config);
  for (const MixerConfig& first : {MixerConfig("softmax", {{"num_heads", 2}}), own_values}) {
    config.hybrid = {{.layers = {0}, .mixer = first}};
    EXPECT_HL_ERROR(LanguageModel{config}, ExitCode::kUsage,
                    "rwkv7 in layer 1 reads the values of rwkv7 in layer 0",
                    "Use rwkv7 with value_residual: true in layer 0, or value_residual: false in "
                    "layer 1.");
  }
}

TEST(ParameterNames, Mamba2) {
  EXPECT_THAT(
      MixerShapes("mamba2", {{"head_dim", 16}, {"state_size", 8}, {"num_groups", 2}}),
      UnorderedElementsAre(
          Pair("in_proj.weight", ElementsAre(164, 32)), Pair("A_log", ElementsAre(4)),
          Pair("conv1d.weight", ElementsAre(96, 1, 4)), Pair("conv1d.bias", ElementsAre(96)),
          Pair("dt_bias", ElementsAre(4)), Pair("D", ElementsAre(4)),
          Pair("norm.weight", ElementsAre(64)), Pair("out_proj.weight", ElementsAre(32, 64))));
}

// Published parameter counts of the configs called 340M and 1B (vocabulary 32000, untied).
TEST(ParameterNames, CountsOfPublishedModels) {
  ModelConfig config = {.vocab_size = 32000, .model_dim = 1024, .num_layers = 24};
  config.mixer = MixerConfig("softmax", {{"num_heads", 16}});
  EXPECT_EQ(LanguageModel(config).CountParameters().total(), 373867520);
  config.mixer = MixerConfig("gla", {{"num_heads", 4}});
  EXPECT_EQ(LanguageModel(config).CountParameters().total(), 374475776);
  EXPECT_EQ(LanguageModel(config).CountParameters().embedding, 32768000);
  config.mixer = MixerConfig("delta_net", {{"num_heads", 8}});
  EXPECT_EQ(LanguageModel(config).CountParameters().total(), 374362112);
  config.mixer = MixerConfig("hgrn2", {{"num_heads", 8}});
  EXPECT_EQ(LanguageModel(config).CountParameters().total(), 373916672);
  config.mixer = MixerConfig("gsa", {{"num_heads", 4}, {"norm_affine", false}});
  EXPECT_EQ(LanguageModel(config).CountParameters().total(), 380158976);
  config.mixer =
      MixerConfig("gated_delta_net", {{"num_heads", 6}, {"head_dim", 256}, {"expand_v", 2.0}});
  config.num_layers = 21;
  EXPECT_EQ(LanguageModel(config).CountParameters().total(), 512272124);
  config.model_dim = 2048;
  EXPECT_EQ(LanguageModel(config).CountParameters().total(), 1387348732);
}

TEST(ParameterNames, NormsComputeInFp32AndOnlyMatricesDecay) {
  const LanguageModel model(Tiny("gla"));
  for (const dist::ParamSpec& spec : model.parameters().specs()) {
    const bool is_matrix = spec.shape.size() == 2;
    EXPECT_EQ(spec.weight_decay, is_matrix) << spec.name;
    EXPECT_EQ(spec.region == dist::Region::kFp32, !is_matrix) << spec.name;
  }
}

// The block equals plain LibTorch calls around the mixer, which has its own tests.
TEST(LanguageModelTest, IsThePreNormFrame) {
  LanguageModel model(Tiny());
  model.BindOwnMemory(3, false);
  Widen(model);
  std::map<std::string, at::Tensor> p;
  for (int i = 0; i < model.parameters().size(); ++i)
    p[model.parameters().specs()[i].name] = model.parameters().tensor(i);
  ParameterSet mixer_parameters;
  std::vector<std::unique_ptr<Mixer>> mixers;
  for (int layer = 0; layer < 2; ++layer)
    mixers.push_back(MakeMixer(Tiny().mixer, {.sizes = Tiny().sizes(),
                                              .prefix = Concat("layers.", layer, ".attn."),
                                              .parameters = &mixer_parameters}));
  for (int i = 0; i < mixer_parameters.size(); ++i)
    mixer_parameters.Bind(i, p.at(mixer_parameters.specs()[i].name));
  const auto norm = [](const at::Tensor& x, const at::Tensor& weight) {
    return x / (x.square().mean(-1, true) + 1e-6).sqrt() * weight;
  };
  const at::Tensor tokens = Tokens(2, 20, 1);
  const auto slice = SequenceSlice::Contiguous(2, 20, 0, at::kCPU);
  at::Tensor x = at::embedding(p["embeddings.weight"], tokens);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = Concat("layers.", layer, ".");
    const at::Tensor normed = norm(x, p[prefix + "attn_norm.weight"]);
    x = x + mixers[layer]->Forward({.x = normed, .slice = slice}).y;
    const at::Tensor h = norm(x, p[prefix + "mlp_norm.weight"]);
    const at::Tensor gate = at::linear(h, p[prefix + "mlp.gate_proj.weight"]);
    const at::Tensor up = at::linear(h, p[prefix + "mlp.up_proj.weight"]);
    x = x + at::linear(at::silu(gate) * up, p[prefix + "mlp.down_proj.weight"]);
  }
  const at::Tensor want = at::linear(norm(x, p["norm.weight"]), p["lm_head.weight"]);
  const at::Tensor got = model.Logits(model.Hidden(tokens, {.slice = &slice}));
  EXPECT_TRUE(Close(got, want, 1e-12));
}

TEST(LanguageModelTest, LossIsTheSumOfLogSoftmax) {
  LanguageModel model(Tiny());
  model.BindOwnMemory(1, true);
  const at::Tensor tokens = Tokens(2, 30, 1);
  at::Tensor targets = Tokens(2, 30, 2);
  targets[1][4] = -100;
  const auto slice = SequenceSlice::Contiguous(2, 30, 0, at::kCPU);
  const ForwardContext context = {.slice = &slice, .z_loss_weight = 0.01};
  const LossSums sums = model.Loss(tokens, targets, context);
  const at::Tensor logits = model.Logits(model.Hidden(tokens, context)).detach().to(at::kDouble);
  EXPECT_EQ(logits.sizes(), at::IntArrayRef({2, 30, 37}));
  const at::Tensor per_token =
      -at::log_softmax(logits, 2).gather(2, targets.clamp_min(0).unsqueeze(2)).squeeze(2) *
      (targets >= 0).to(at::kDouble);
  const double want = per_token.sum().item<double>();
  EXPECT_NEAR(sums.loss.item<double>(), want, 1e-6 * want);
  EXPECT_TRUE(Close(model.TokenLosses(tokens, targets, context), per_token, 2e-6));
  const at::Tensor log_z = logits.exp().sum(2).log();
  const double want_z = (log_z.square() * (targets >= 0).to(at::kDouble)).sum().item<double>();
  EXPECT_NEAR(sums.z_loss.item<double>(), want_z, 1e-6 * std::abs(want_z) + 1e-4);
  EXPECT_NEAR(sums.objective.item<double>(), want + 0.01 * want_z, 1e-6 * want);
}

TEST(LanguageModelTest, EveryParameterGetsAGradient) {
  for (const std::string& mixer : NamesOf(kMixers)) {
    LanguageModel model(Tiny(mixer));
    model.BindOwnMemory(1, true);
    // Behind a matrix of zeros, such as the first ones of RWKV-7's gates, gradients are 0.
    for (int i = 0; i < model.parameters().size(); ++i) {
      const at::Tensor& value = model.parameters().tensor(i);
      if (!value.any().item<bool>())
        model.parameters().Bind(
            i, test::Normal(value.sizes().vec(), i, at::kFloat).requires_grad_(true));
    }
    const auto slice = SequenceSlice::Contiguous(2, 30, 0, at::kCPU);
    model.Loss(Tokens(2, 30, 1), Tokens(2, 30, 2), {.slice = &slice}).objective.backward();
    for (int i = 0; i < model.parameters().size(); ++i) {
      const at::Tensor& grad = model.parameters().tensor(i).grad();
      ASSERT_TRUE(grad.defined()) << mixer << " " << model.parameters().specs()[i].name;
      EXPECT_GT(grad.abs().max().item<float>(), 0)
          << mixer << " " << model.parameters().specs()[i].name;
    }
  }
}

TEST(LanguageModelTest, TiedEqualsUntiedWithEqualTables) {
  ModelConfig config = Tiny();
  LanguageModel untied(config);
  config.head.tied = true;
  LanguageModel tied(config);
  tied.BindOwnMemory(4, true);
  untied.BindOwnMemory(4, true);
  const int head = untied.parameters().size() - 1;
  ASSERT_EQ(untied.parameters().specs()[head].name, "lm_head.weight");
  untied.parameters().Bind(head,
                           untied.parameters().tensor(0).detach().clone().requires_grad_(true));
  EXPECT_THAT(tied.parameters().specs()[0].aliases, ElementsAre("lm_head.weight"));
  EXPECT_EQ(tied.parameters().size(), untied.parameters().size() - 1);
  const auto slice = SequenceSlice::Contiguous(2, 30, 0, at::kCPU);
  const ForwardContext context = {.slice = &slice};
  const LossSums a = tied.Loss(Tokens(2, 30, 1), Tokens(2, 30, 2), context);
  const LossSums b = untied.Loss(Tokens(2, 30, 1), Tokens(2, 30, 2), context);
  EXPECT_EQ(a.loss.item<float>(), b.loss.item<float>());
  a.objective.backward();
  b.objective.backward();
  // The shared table's gradient is the sum of both uses.
  EXPECT_TRUE(Close(tied.parameters().tensor(0).grad(),
                    untied.parameters().tensor(0).grad() + untied.parameters().tensor(head).grad(),
                    1e-6));
}

// Compares losses(seed, samples, training) of two rows; `base` is that of (1, {5, 6}, true).
template <typename Losses>
void ExpectDrawsBySeedAndSample(const Losses& losses, const at::Tensor& base) {
  EXPECT_TRUE(test::BitEqual(losses(1, {5, 6}, true), base));
  EXPECT_FALSE(test::BitEqual(losses(2, {5, 6}, true), base));
  const at::Tensor other_second_row = losses(1, {5, 7}, true);
  EXPECT_TRUE(test::BitEqual(other_second_row[0], base[0]));
  EXPECT_FALSE(test::BitEqual(other_second_row[1], base[1]));
  EXPECT_TRUE(test::BitEqual(losses(1, {}, false), losses(2, {}, false))) << "off in evaluation";
}

TEST(LanguageModelTest, DropoutIsAFunctionOfSeedAndSample) {
  ModelConfig config = Tiny();
  config.dropout = 0.2;
  LanguageModel model(config);
  model.BindOwnMemory(1, false);
  const at::Tensor tokens = Tokens(2, 12, 1), targets = Tokens(2, 12, 2);
  const auto slice = SequenceSlice::Contiguous(2, 12, 0, at::kCPU);
  const auto losses = [&](uint64_t seed, std::vector<uint64_t> samples, bool training) {
    return model.TokenLosses(tokens, targets,
                             {.slice = &slice,
                              .training = training,
                              .seed = seed,
                              .samples = ops::SampleNumbers(samples, at::kCPU)});
  };
  const at::Tensor base = losses(1, {5, 6}, true);
  ExpectDrawsBySeedAndSample(losses, base);
}

// Dropout of attention weights depends on seed, sample and layer, and is active only in training.
TEST(LanguageModelTest, DropoutOfWeightsIsAFunctionOfSeedSampleAndLayer) {
  ModelConfig config = Tiny("softmax");
  config.mixer.Set("dropout", 0.2);
  LanguageModel model(config);
  model.BindOwnMemory(1, false);
  const at::Tensor tokens = Tokens(2, 12, 1), targets = Tokens(2, 12, 2);
  const auto slice = SequenceSlice::Contiguous(2, 12, 0, at::kCPU);
  std::vector<ops::DropoutConfig> drawn;
  const auto losses = [&](uint64_t seed, std::vector<uint64_t> samples, bool training) {
    ForwardContext context = {.slice = &slice,
                              .training = training,
                              .seed = seed,
                              .samples = ops::SampleNumbers(samples, at::kCPU)};
    context.observe = [&](int64_t, const auto&, const auto& attention) {
      drawn.push_back(attention.dropout);
    };
    return model.TokenLosses(tokens, targets, context);
  };
  const at::Tensor base = losses(1, {5, 6}, true);
  ASSERT_EQ(drawn.size(), 2u);
  EXPECT_EQ(drawn[0].rate, 0.2);
  EXPECT_FALSE(drawn[0].key.k0 == drawn[1].key.k0 && drawn[0].key.k1 == drawn[1].key.k1);
  ExpectDrawsBySeedAndSample(losses, base);
}

// bf16 compute: matrices are bf16, norms and the loss fp32.
TEST(LanguageModelTest, Bf16StaysNearFp32) {
  for (const std::string& mixer : NamesOf(kMixers)) {
    LanguageModel model(Tiny(mixer));
    model.BindOwnMemory(1, false);
    const auto slice = SequenceSlice::Contiguous(2, 70, 0, at::kCPU);
    const at::Tensor tokens = Tokens(2, 70, 1), targets = Tokens(2, 70, 2);
    const at::Tensor want = model.TokenLosses(tokens, targets, {.slice = &slice});
    for (int i = 0; i < model.parameters().size(); ++i) {
      const bool compute = model.parameters().specs()[i].region == dist::Region::kCompute;
      const at::ScalarType dtype = compute ? at::kBFloat16 : at::kFloat;
      model.parameters().Bind(i, model.parameters().tensor(i).to(dtype).requires_grad_(true));
    }
    const at::Tensor got = model.TokenLosses(tokens, targets, {.slice = &slice});
    EXPECT_EQ(got.scalar_type(), at::kFloat);
    // About ten roundings of 2^-9 in each of two layers. Logits have order 1.
    EXPECT_NEAR((got - want).square().mean().sqrt().item<double>(), 0, 0.05) << mixer;
    const LossSums sums = model.Loss(tokens, targets, {.slice = &slice});
    EXPECT_EQ(sums.loss.scalar_type(), at::kFloat);
    sums.objective.backward();
    for (int i = 0; i < model.parameters().size(); ++i)
      EXPECT_TRUE(model.parameters().tensor(i).grad().isfinite().all().item<bool>()) << mixer;
  }
}

TEST(LanguageModelTest, CostsAddUp) {
  const LanguageModel model(Tiny("softmax"));
  const ParameterCount count = model.CountParameters();
  int64_t matrices = 0, total = 0;
  for (const dist::ParamSpec& spec : model.parameters().specs()) {
    total += spec.count();
    if (spec.shape.size() == 2 && spec.name != "embeddings.weight") matrices += spec.count();
  }
  EXPECT_EQ(count.total(), total);
  EXPECT_EQ(count.norm, 5 * 32);
  EXPECT_EQ(ModelCost(model, 64).FlopsPerToken().matmul, 2.0 * static_cast<double>(matrices));
  EXPECT_FALSE(model.constant_state());
  EXPECT_TRUE(LanguageModel(Tiny("gla")).constant_state());
}

}  // namespace
}  // namespace halflife::model
