// Each part except the mixers equals its formula in plain LibTorch calls, in fp64. Also tests a
// whole model for each variant: gradients, decoding, costs.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "model/language_model.h"
#include "model/mixer_forms.h"
#include "model/model_cost.h"
#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::Close;
using test::Normal;

constexpr int64_t kDim = 16, kLayers = 2;
constexpr double kTolerance = 1e-12;  // About ten operations of order 1 in fp64.

// A part's parameters, with random values in fp64.
class Parts : public testing::Test {
 protected:
  PartContext Context(const std::string& prefix = "") {
    return {.sizes = {.model_dim = kDim, .num_layers = kLayers},
            .prefix = prefix,
            .parameters = &parameters_};
  }
  void Bind() {
    for (int i = 0; i < parameters_.size(); ++i) {
      values_[parameters_.specs()[i].name] = Normal(parameters_.specs()[i].shape, 100 + i);
      parameters_.Bind(i, values_[parameters_.specs()[i].name]);
    }
  }
  ParameterSet parameters_;
  std::map<std::string, at::Tensor> values_;
  const at::Tensor x_ = Normal({2, 5, kDim}, 1);
};

TEST_F(Parts, RmsNorm) {
  const auto norm = MakeNorm(NormConfig("rms_norm", {{"eps", 0.1}}), Context("n."), kDim);
  const auto bare = MakeNorm(NormConfig("rms_norm", {{"weight", false}}), Context("b."), kDim);
  Bind();
  const at::Tensor rms = (x_.square().mean(-1, true) + 0.1).sqrt();
  EXPECT_TRUE(Close((*norm)(x_), x_ / rms * values_["n.weight"], kTolerance));
  EXPECT_TRUE(Close((*bare)(x_), x_ / (x_.square().mean(-1, true) + 1e-6).sqrt(), kTolerance));
  EXPECT_EQ(parameters_.size(), 1);
}

// The factor is 1 + w. The weight starts at 0, and has no weight decay as every norm.
TEST_F(Parts, ZeroCenteredRmsNorm) {
  const NormConfig config("rms_norm", {{"zero_centered", true}});
  const auto norm = MakeNorm(config, Context("n."), kDim);
  std::vector<float> initial(kDim, 7);
  parameters_.Initialise(0, 1, initial.data());
  EXPECT_EQ(initial, std::vector<float>(kDim, 0));
  EXPECT_FALSE(parameters_.specs()[0].weight_decay);
  EXPECT_EQ(parameters_.specs()[0].region, dist::Region::kFp32);
  Bind();
  const at::Tensor branch = Normal({2, 5, kDim}, 2);
  const auto want = [&](const at::Tensor& of) {
    return of / (of.square().mean(-1, true) + 1e-6).sqrt() * (1 + values_["n.weight"]);
  };
  EXPECT_TRUE(Close((*norm)(x_), want(x_), kTolerance));
  at::Tensor x = x_;
  EXPECT_TRUE(Close(norm->AddAndNorm(x, branch), want(x_ + branch), kTolerance));
  NormConfig bare("rms_norm", {{"zero_centered", true}, {"weight", false}});
  EXPECT_THAT(bare.Resolve({.model_dim = kDim, .num_layers = 1}),
              testing::ElementsAre("norm rms_norm: zero_centered without weight. Use both, or only "
                                   "weight."));
}

TEST_F(Parts, LayerNorm) {
  const auto norm = MakeNorm(NormConfig("layer_norm", {{"eps", 0.1}}), Context("n."), kDim);
  Bind();
  const at::Tensor centred = x_ - x_.mean(-1, true);
  const at::Tensor scale = (centred.square().mean(-1, true) + 0.1).sqrt();
  EXPECT_TRUE(
      Close((*norm)(x_), centred / scale * values_["n.weight"] + values_["n.bias"], kTolerance));
  EXPECT_FALSE(parameters_.specs()[1].weight_decay);
}

TEST_F(Parts, AddAndNormIsTheNormOfTheSum) {
  const at::Tensor branch = Normal({2, 5, kDim}, 2);
  for (const std::string& name : NamesOf(kNorms)) {
    const auto norm = MakeNorm(NormConfig(name), Context(name), kDim);
    Bind();
    at::Tensor x = x_;
    const at::Tensor normed = norm->AddAndNorm(x, branch);
    EXPECT_TRUE(Close(x, x_ + branch, kTolerance));
    EXPECT_TRUE(Close(normed, (*norm)(x_ + branch), kTolerance)) << name;
  }
}

TEST_F(Parts, MlpAndGlu) {
  const auto mlp = MakeChannelMixer(
      ChannelMixerConfig("mlp", {{"ratio", 3}, {"activation", "gelu_tanh"}, {"bias", true}}),
      Context("m."));
  const auto glu = MakeChannelMixer(
      ChannelMixerConfig("glu", {{"width", 9}, {"activation", "relu"}}), Context("g."));
  Bind();
  EXPECT_EQ(values_["m.up_proj.weight"].size(0), 3 * kDim);
  const at::Tensor inner =
      at::gelu(at::linear(x_, values_["m.up_proj.weight"], values_["m.up_proj.bias"]), "tanh");
  EXPECT_TRUE(Close((*mlp)(x_),
                    at::linear(inner, values_["m.down_proj.weight"], values_["m.down_proj.bias"]),
                    kTolerance));
  const at::Tensor gated = at::relu(at::linear(x_, values_["g.gate_proj.weight"])) *
                           at::linear(x_, values_["g.up_proj.weight"]);
  EXPECT_TRUE(Close((*glu)(x_), at::linear(gated, values_["g.down_proj.weight"]), kTolerance));
  EXPECT_TRUE((*MakeChannelMixer(ChannelMixerConfig("identity"), Context("i.")))(x_).equal(x_));
}

TEST_F(Parts, SwiGluWithMultipliers) {
  const auto swiglu = MakeChannelMixer(
      ChannelMixerConfig(
          "swiglu",
          {{"width", 9}, {"bias", true}, {"gate_multiplier", 0.5}, {"down_multiplier", 3.0}}),
      Context("s."));
  Bind();
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return at::linear(x, values_["s." + name + ".weight"], values_["s." + name + ".bias"]);
  };
  const at::Tensor inner = at::silu(0.5 * linear(x_, "gate_proj")) * linear(x_, "up_proj");
  EXPECT_TRUE(Close((*swiglu)(x_), 3 * linear(inner, "down_proj"), kTolerance));
  ChannelMixerConfig infinite("swiglu", {{"gate_multiplier", HUGE_VAL}});
  EXPECT_EQ(infinite.Resolve({.model_dim = kDim, .num_layers = 1}),
            std::vector<std::string>{"channel_mixer swiglu: gate_multiplier is inf and "
                                     "down_multiplier 1. Use finite numbers (1 is usual)."});
}

TEST_F(Parts, ChannelMixersDeclareTheirMatmuls) {
  for (const std::string& name : NamesOf(kChannelMixers)) {
    const int64_t before = parameters_.num_elements();
    const auto mixer = MakeChannelMixer(ChannelMixerConfig(name), Context(name));
    EXPECT_EQ(mixer->FlopsPerToken().matmul,
              2.0 * static_cast<double>(parameters_.num_elements() - before));
    EXPECT_GE(mixer->ActivationsPerToken(), name == kNoChannelMixer ? 0 : double{kDim});
  }
}

TEST_F(Parts, Positions) {
  const at::Tensor positions = at::arange(7, 12, at::kLong).unsqueeze(0).expand({2, 5});
  const auto learned =
      MakePositions(PositionsConfig("learned", {{"max_positions", 12}}), Context("p."));
  const auto sines = MakePositions(PositionsConfig("sinusoidal"), Context());
  Bind();
  EXPECT_TRUE(
      Close(learned->AddTo(x_, positions), x_ + values_["p.weight"].narrow(0, 7, 5), kTolerance));
  EXPECT_EQ(learned->max_positions(), 12);
  const at::Tensor table = sines->AddTo(x_, positions) - x_;
  EXPECT_NEAR(table[1][2][0].item<double>(), std::sin(9.0), kTolerance);
  EXPECT_NEAR(table[1][2][1].item<double>(), std::cos(9.0), kTolerance);
  EXPECT_NEAR(table[0][4][6].item<double>(), std::sin(11 * std::pow(10000, -6.0 / kDim)),
              kTolerance);
  EXPECT_EQ(sines->max_positions(), 0);
}

TEST_F(Parts, EmbeddingWithScaleAndSegments) {
  EmbeddingOptions options;
  options.scale = 3;
  options.num_segments = 2;
  const TokenEmbedding embedding(options, Context(), 11, {});
  Bind();
  const at::Tensor tokens = at::arange(0, 10, at::kLong).view({2, 5});
  const at::Tensor segments = tokens.remainder(2);
  const at::Tensor plain = 3 * at::embedding(values_["embeddings.weight"], tokens);
  const at::Tensor& table = values_["segment_embeddings.weight"];
  EXPECT_TRUE(Close(embedding(tokens, segments), plain + at::embedding(table, segments), 1e-12));
  EXPECT_TRUE(Close(embedding(tokens, {}), plain + table[0], kTolerance));
}

TEST_F(Parts, HeadWithBias) {
  HeadOptions options;
  options.bias = true;
  const OutputHead head(options, Context(), 11, Parameter());
  Bind();
  const at::Tensor logits = at::linear(x_, values_["lm_head.weight"], values_["lm_head.bias"]);
  EXPECT_TRUE(Close(head.Logits(x_), logits, kTolerance));
  const at::Tensor targets = at::arange(0, 10, at::kLong);
  const at::Tensor want =
      -at::log_softmax(logits.flatten(0, 1), 1).gather(1, targets.unsqueeze(1)).squeeze(1);
  EXPECT_TRUE(Close(head.TokenLosses(x_.flatten(0, 1), targets), want, 1e-11));
  EXPECT_NEAR(head.Loss(x_.flatten(0, 1), targets, {}).loss.item<double>(),
              want.sum().item<double>(), 1e-10);
}

// Logits, losses and the greedy token with a factor and a bias, which are scaled once.
TEST_F(Parts, HeadWithALogitScale) {
  HeadOptions options;
  options.bias = true;
  options.logit_scale = 0;
  ProblemList problems("head");
  options.Resolve({.model_dim = kDim, .num_layers = 1}, problems);
  EXPECT_DOUBLE_EQ(options.logit_scale, 1 / std::sqrt(double{kDim}));
  const OutputHead head(options, Context(), 11, Parameter());
  EXPECT_TRUE(head.scales_hidden());
  Bind();
  const at::Tensor logits =
      at::linear(x_, values_["lm_head.weight"], values_["lm_head.bias"]) / std::sqrt(double{kDim});
  EXPECT_TRUE(Close(head.Logits(x_), logits, kTolerance));
  const at::Tensor targets = at::arange(0, 10, at::kLong), rows = x_.flatten(0, 1);
  const at::Tensor want =
      -at::log_softmax(logits.flatten(0, 1), 1).gather(1, targets.unsqueeze(1)).squeeze(1);
  EXPECT_TRUE(Close(head.TokenLosses(rows, targets), want, 1e-11));
  EXPECT_TRUE(Close(head.TokenScores(rows, targets, {}).loss, want, 1e-11));
  EXPECT_NEAR(head.Loss(rows, targets, {}).loss.item<double>(), want.sum().item<double>(), 1e-10);
}

TEST_F(Parts, ALogitScaleBelowZeroIsRefused) {
  HeadOptions options;
  options.logit_scale = -1;
  ProblemList problems("head");
  options.Resolve({.model_dim = kDim, .num_layers = 1}, problems);
  EXPECT_THAT(problems.lines(),
              testing::ElementsAre("head: option logit_scale is -1. Use a number above 0, or 0 for "
                                   "1 / sqrt(model_dim)."));
}

// Runs a block whose mixer doubles its input and whose channel mixer is the identity, to test the
// block's own arithmetic.
at::Tensor RunBlock(const Block& block, const at::Tensor& x) {
  ResidualStream stream(x);
  block.Forward(stream, {.mix = [](const Mixer&, const at::Tensor& h) { return 2 * h; },
                         .drop = [](LayerPass::Branch, const at::Tensor& y) { return y; }});
  return stream.Sum();
}

TEST_F(Parts, BlocksArithmetic) {
  const NormConfig norm("layer_norm", {{"weight", false}, {"bias", false}});
  const MixerConfig mixer("softmax", {{"num_heads", 2}});
  const ChannelMixerConfig channel_mixer("identity");
  const auto make = [&](const BlockConfig& config, const char* prefix) {
    return MakeBlock(
        config,
        {.part = Context(prefix), .norm = norm, .mixer = mixer, .channel_mixer = channel_mixer});
  };
  const auto plain = MakeNorm(norm, Context(), kDim);
  const Norm& n = *plain;
  const at::Tensor middle = x_ + 2 * n(x_);
  EXPECT_TRUE(Close(RunBlock(*make(BlockConfig("pre_norm"), "a."), x_), middle + n(middle), 1e-11));
  const auto of_norm = make(BlockConfig("pre_norm", {{"mixer_residual_post_norm", true}}), "d.");
  EXPECT_TRUE(Close(RunBlock(*of_norm, x_), 3 * n(x_) + n(3 * n(x_)), 1e-11));
  const auto scaled = make(BlockConfig("pre_norm", {{"residual_multiplier", 0.25}}), "e.");
  const at::Tensor part = x_ + 0.5 * n(x_);
  EXPECT_TRUE(Close(RunBlock(*scaled, x_), part + 0.25 * n(part), 1e-11));
  const auto large_eps = make(BlockConfig("pre_norm", {{"norm_eps", 0.3}}), "g.");
  NormConfig large = norm;
  large.Set("eps", 0.3);
  const auto of_large = MakeNorm(large, Context(), kDim);
  const at::Tensor first = x_ + 2 * (*of_large)(x_);
  EXPECT_TRUE(Close(RunBlock(*large_eps, x_), first + (*of_large)(first), 1e-11));
  const auto output = make(BlockConfig("output_norm"), "f.");
  const at::Tensor mixed = x_ + n(2 * x_);
  EXPECT_TRUE(Close(RunBlock(*output, x_), mixed + n(mixed), 1e-11));
  EXPECT_TRUE(output->needs_final_norm());
  const auto post = make(BlockConfig("post_norm"), "b.");
  EXPECT_TRUE(Close(RunBlock(*post, x_), n(2 * n(3 * x_)), 1e-11));
  EXPECT_FALSE(post->needs_final_norm());
  const auto deep = make(BlockConfig("post_norm", {{"deep_norm", true}}), "c.");
  const double alpha = std::pow(2.0 * kLayers, 0.25);
  EXPECT_TRUE(Close(RunBlock(*deep, x_), n((alpha + 1) * n((alpha + 2) * x_)), 1e-11));
}

// A multiplier of 1 changes no bit.
TEST_F(Parts, BranchesWithoutAFactorAreNotScaled) {
  const NormConfig norm("rms_norm");
  const MixerConfig mixer("softmax", {{"num_heads", 2}});
  const ChannelMixerConfig channel_mixer("identity");
  const auto block = MakeBlock(
      BlockConfig("pre_norm", {{"residual_multiplier", 1.0}}),
      {.part = Context("a."), .norm = norm, .mixer = mixer, .channel_mixer = channel_mixer});
  Bind();
  const at::Tensor branch = Normal({2, 5, kDim}, 3);
  ResidualStream stream(x_);
  block->Forward(stream, {.mix = [&](const Mixer&, const at::Tensor&) { return branch; },
                          .drop = [](LayerPass::Branch, const at::Tensor& y) { return y; }});
  EXPECT_TRUE(stream.x().equal(x_ + branch));
  BlockConfig zero("pre_norm", {{"residual_multiplier", 0.0}});
  EXPECT_THAT(zero.Resolve({.model_dim = kDim, .num_layers = 1}),
              testing::ElementsAre("block pre_norm: option residual_multiplier is 0. Use a number "
                                   "above 0, or 1 for branches without a factor."));
}

// The norm has weights, so there is one for the mixer and none for the missing channel mixer.
TEST_F(Parts, BlocksWithOnlyAMixer) {
  const NormConfig norm("rms_norm", {{"eps", 0.1}});
  const MixerConfig mixer("softmax", {{"num_heads", 2}});
  const ChannelMixerConfig none(kNoChannelMixer);
  for (const char* name : {"pre_norm", "post_norm", "sub_ln", "output_norm"}) {
    const std::string prefix = Concat(name, ".");
    const auto block =
        MakeBlock(BlockConfig(name),
                  {.part = Context(prefix), .norm = norm, .mixer = mixer, .channel_mixer = none});
    Bind();
    EXPECT_FALSE(values_.contains(prefix + "mlp_norm.weight"));
    const auto normed = [&](const at::Tensor& x) {
      return x / (x.square().mean(-1, true) + 0.1).sqrt() * values_[prefix + "attn_norm.weight"];
    };
    const at::Tensor want = std::string(name) == "post_norm"     ? normed(3 * x_)
                            : std::string(name) == "output_norm" ? x_ + normed(2 * x_)
                                                                 : x_ + 2 * normed(x_);
    EXPECT_TRUE(Close(RunBlock(*block, x_), want, 1e-11)) << name;
    EXPECT_HL_ERROR(block->channel_mixer()(x_), ExitCode::kInternal,
                    "the channel mixer `none` was called");
  }
}

// Returns the ratio of a parameter's initial standard deviation to that of q_proj.
double InitRatio(const BlockConfig& block, const std::string& name) {
  const LanguageModel model({.vocab_size = 11,
                             .model_dim = 256,
                             .num_layers = 8,
                             .block = block,
                             .mixer = MixerConfig("softmax")});
  const auto std_dev = [&](const std::string& wanted) {
    for (int i = 0; i < model.parameters().size(); ++i) {
      const dist::ParamSpec& spec = model.parameters().specs()[i];
      if (spec.name != "layers.3." + wanted) continue;
      std::vector<float> values(spec.count());
      model.parameters().Initialise(i, 1, values.data());
      double squares = 0;
      for (const double value : values) squares += value * value;
      return std::sqrt(squares / static_cast<double>(values.size()));
    }
    return 0.0;
  };
  return std_dev(name) / std_dev("attn.q_proj.weight");
}

// At least 65,536 draws each: five standard errors of a ratio are 2 %.
TEST(BlockInit, ScalesTheBranchesByDepth) {
  const double up = std::sqrt(std::log(16.0)), down = std::pow(64.0, -0.25);
  for (const char* name :
       {"attn.v_proj.weight", "attn.o_proj.weight", "mlp.down_proj.weight", "mlp.up_proj.weight"}) {
    const bool output = std::string(name).find("o") != std::string::npos &&
                        (std::string(name).find("o_proj") != std::string::npos ||
                         std::string(name).find("down") != std::string::npos);
    EXPECT_NEAR(InitRatio(BlockConfig("pre_norm"), name), 1, 0.02) << name;
    EXPECT_NEAR(InitRatio(BlockConfig("pre_norm", {{"scale_init_by_depth", true}}), name),
                output && std::string(name) != "attn.v_proj.weight" ? 0.25 : 1, 0.02)
        << name;
    EXPECT_NEAR(InitRatio(BlockConfig("sub_ln"), name), up, 0.02 * up) << name;
    EXPECT_NEAR(InitRatio(BlockConfig("post_norm", {{"deep_norm", true}}), name), down, 0.02 * down)
        << name;
  }
}

// ---- Whole models, each with one part that is not the default ----

struct Named {
  std::string name;
  ModelConfig config;
};
void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }

bool IsInAttention(const PartConfig& positions) {
  return &positions.kind() == &kPositions &&
         std::ranges::count(test::AttentionPositionsForms(), positions.name(), &PartConfig::name) >
             0;
}

std::vector<Named> ModelsOfEveryPart() {
  const ModelConfig usual = {.vocab_size = 37,
                             .model_dim = kDim,
                             .num_layers = kLayers,
                             .initializer_range = 0.2,
                             .mixer = MixerConfig("gla", {{"num_heads", 2}}),
                             .channel_mixer = ChannelMixerConfig("swiglu", {{"width", 24}})};
  std::vector<Named> models;
  ModelConfig copy = usual;
  VisitParts(
      copy,
      {.group = [](const char*, PartOptions&) {},
       .part =
           [&](PartConfig& part) {
             const PartConfig before = part;
             if (&part.kind() == &kMixers) return;  // Mixers have their own suite.
             for (const std::string& name : NamesOf(part.kind())) {
               part = PartConfig(part.kind(), name);
               models.push_back({std::string(part.kind().name) + "_" + name, copy});
               if (!IsInAttention(part)) continue;
               models.back().config.mixer = MixerConfig("softmax", {{"num_heads", int64_t{2}}});
             }
             part = before;
           }});
  ModelConfig head = usual;
  head.head.tied = head.head.bias = true;
  models.push_back({"head_tied_with_bias", head});
  ModelConfig embedding = usual;
  embedding.embedding.scale = 0;
  embedding.embedding.num_segments = 2;
  models.push_back({"embedding_scaled_with_segments", embedding});
  ModelConfig last = usual;
  last.final_norm = NormConfig("layer_norm");
  models.push_back({"another_final_norm", last});
  ModelConfig bare = usual;
  bare.final_norm = NormConfig("none");
  bare.head.tied = bare.head.bias = true;
  bare.head.logit_scale = 0;
  models.push_back({"no_final_norm_and_scaled_logits", bare});
  ModelConfig of_norm = usual;
  of_norm.block = BlockConfig("pre_norm", {{"mixer_residual_post_norm", true}});
  models.push_back({"residual_post_norm", of_norm});
  ModelConfig sub_ln = usual;
  sub_ln.block = BlockConfig("sub_ln");
  sub_ln.mixer = MixerConfig("softmax", {{"num_heads", 2}, {"out_bias", true}});
  models.push_back({"sub_ln_softmax", sub_ln});
  ModelConfig scaled = usual;
  scaled.block = BlockConfig("pre_norm", {{"residual_multiplier", 0.5}});
  models.push_back({"scaled_branches", scaled});
  return models;
}

// hybrid_models_test.cc has the patterns of published hybrids.
class EveryPart : public testing::TestWithParam<Named> {
 protected:
  EveryPart() : model_(GetParam().config) { model_.BindOwnMemory(1, true); }
  static at::Tensor Tokens(uint64_t seed) {
    return (test::Uniform({2, 30}, seed) * 37.0).to(at::kLong);
  }
  LanguageModel model_;
  const SequenceSlice slice_ = SequenceSlice::Contiguous(2, 30, 0, at::kCPU);
};
INSTANTIATE_TEST_SUITE_P(All, EveryPart, testing::ValuesIn(ModelsOfEveryPart()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(EveryPart, EveryParameterGetsAFiniteGradient) {
  const auto classifier = model_.objective().classifier();
  const at::Tensor labels = classifier ? Tokens(2).remainder(classifier->num_classes) : Tokens(2);
  model_.Loss(Tokens(1), labels, {.slice = &slice_}).objective.backward();
  for (int i = 0; i < model_.parameters().size(); ++i) {
    const at::Tensor& grad = model_.parameters().tensor(i).grad();
    const std::string& name = model_.parameters().specs()[i].name;
    ASSERT_TRUE(grad.defined()) << name;
    EXPECT_TRUE(grad.isfinite().all().item<bool>()) << name;
    EXPECT_GT(grad.abs().max().item<float>(), 0) << name;
  }
}

// fp32, logits of order 1, states summed in another order.
TEST_P(EveryPart, DecodeEqualsTheParallelForm) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = Tokens(3);
  const at::Tensor want = model_.Logits(model_.Hidden(tokens, {.slice = &slice_}));
  ModelState state = model_.EmptyState(2);
  for (int64_t t = 0; t < 30; ++t)
    ASSERT_TRUE(Close(model_.Step(tokens.select(1, t), state), want.select(1, t), 1e-4)) << t;
  EXPECT_EQ(state.num_tokens, 30);
}

TEST_P(EveryPart, CountsAddUp) {
  EXPECT_EQ(model_.CountParameters().total(), model_.parameters().num_elements());
  EXPECT_GT(ModelCost(model_, 30).ActivationBytesPerToken(4), 0);
}

// The scaled copy of the last hidden vector, in elements of 4 bytes.
TEST(ModelCostTest, ALogitScaleCostsACopyOfTheHiddenVector) {
  ModelConfig config = {.vocab_size = 37, .model_dim = kDim, .num_layers = 1};
  config.mixer = MixerConfig("softmax", {{"num_heads", 2}});
  const auto bytes = [&] {
    return ModelCost(LanguageModel(config), 30).ActivationBytesPerToken(4);
  };
  const double plain = bytes();
  config.head.logit_scale = 0.5;
  EXPECT_EQ(bytes() - plain, 4.0 * kDim);
}

TEST(LearnedPositions, ATextBeyondTheTableIsRefused) {
  LanguageModel model({.vocab_size = 37,
                       .model_dim = kDim,
                       .num_layers = 1,
                       .positions = PositionsConfig("learned", {{"max_positions", 4}}),
                       .mixer = MixerConfig("softmax", {{"num_heads", 2}})});
  model.BindOwnMemory(1, false);
  EXPECT_EQ(model.max_positions(), 4);
  const at::Tensor tokens = at::arange(0, 5, at::kLong).unsqueeze(0);
  const auto slice = SequenceSlice::Contiguous(1, 5, 0, at::kCPU);
  try {
    model.Hidden(tokens, {.slice = &slice});
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("position 4 is beyond the model's table of 4"));
  }
}

}  // namespace
}  // namespace halflife::model
