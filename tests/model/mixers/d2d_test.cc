// D2D and its baselines equal the quadratic form in LibTorch calls: weights phi(q_i) . phi(k_j)
// gamma^(i-j), each row divided by its sum.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>

#include "model/language_model.h"
#include "model/mixers/built_mixer.h"
#include "ops/gradient_check.h"
#include "ops/rows/dropout.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;

constexpr int64_t kDim = 16, kHeads = 2, kHeadDim = kDim / kHeads;
// Sums of a few hundred positive terms in fp64.
constexpr double kTolerance = 1e-11;

MixerConfig D2d(const std::vector<Assignment>& options = {}) {
  MixerConfig config("d2d", {{"num_heads", kHeads}});
  for (const auto& [name, value] : options) config.Set(name, value);
  return config;
}

at::Tensor Base(int64_t num_heads) {
  at::Tensor base = at::zeros({num_heads}, at::kDouble);
  for (int64_t h = 1; h <= num_heads; ++h)
    base[h - 1] = -std::exp2(-static_cast<double>(num_heads) / static_cast<double>(h));
  return base.to(at::kFloat).to(at::kDouble);  // Stored in fp32.
}

struct Heads {
  at::Tensor q, k, v;  // [B, T, H, d], fp64
};
Heads Project(const BuiltMixer& mixer, const at::Tensor& x) {
  const auto project = [&](const std::string& name) {
    return at::linear(x, mixer[name + "_proj.weight"], mixer[name + "_proj.bias"])
        .to(at::kDouble)
        .unflatten(-1, {kHeads, kHeadDim});
  };
  return {project("q"), project("k"), project("v")};
}

// ln(phi): phi is elu(x) + 1 or exp(x).
at::Tensor LogFeature(const at::Tensor& x, bool exp) {
  return exp ? x : at::where(x > 0, x.clamp_min(0).log1p(), x);
}

// Returns o [B, rows, H, d] from sums of exponentials of logarithms, which cannot overflow.
// log_decay is [H, d].
at::Tensor Oracle(const Heads& heads, const at::Tensor& log_decay, bool exp,
                  const at::Tensor& rows) {
  const int64_t seq_len = heads.q.size(1);
  const at::Tensor place = at::arange(seq_len, at::kDouble);
  const at::Tensor distance = rows.to(at::kDouble).unsqueeze(1) - place.unsqueeze(0);  // [T, S]
  const at::Tensor q = heads.q.index_select(1, rows);
  // [B, H, T, S, d]
  const at::Tensor terms = LogFeature(q, exp).permute({0, 2, 1, 3}).unsqueeze(3) +
                           LogFeature(heads.k, exp).permute({0, 2, 1, 3}).unsqueeze(2) +
                           distance.clamp_min(0).view({1, 1, rows.size(0), seq_len, 1}) *
                               log_decay.view({1, kHeads, 1, 1, -1});
  at::Tensor logits = at::logsumexp(terms, -1);
  logits = logits.masked_fill(distance < 0, -std::numeric_limits<double>::infinity());
  const at::Tensor weights = at::softmax(logits, -1);
  return at::einsum("bhts,bshd->bthd", {weights, heads.v});
}
at::Tensor Oracle(const Heads& heads, const at::Tensor& log_decay, bool exp) {
  return Oracle(heads, log_decay, exp, at::arange(heads.q.size(1), at::kLong));
}

at::Tensor Output(const BuiltMixer& mixer, const at::Tensor& o) {
  return at::linear(o.flatten(2), mixer["o_proj.weight"].to(at::kDouble),
                    mixer["o_proj.bias"].to(at::kDouble));
}

// Property 1: the mixer equals the quadratic form. Property 20: also in fp32, up to rounding.
TEST(D2d, IsTheQuadraticForm) {
  for (const bool exp : {false, true}) {
    for (const int64_t seq_len : {1, 17, 64, 65, 200}) {
      SCOPED_TRACE(testing::Message() << "exp " << exp << ", length " << seq_len);
      const MixerConfig config = D2d({{"feature_map", exp ? "exp" : "elu"}});
      BuiltMixer mixer(config, kDim);
      mixer.Set("Ps", 0.3 * Normal({1, kDim}, 3) / (exp ? 0.02 : 1));
      const at::Tensor x = Normal({2, seq_len, kDim}, 1);
      const at::Tensor log_decay =
          Base(kHeads).unsqueeze(1) - (exp ? 0.02 : 1.0) * mixer["Ps"].view({kHeads, kHeadDim});
      const at::Tensor want = Output(mixer, Oracle(Project(mixer, x), log_decay, exp));
      EXPECT_TRUE(Close(mixer.Run(x), want, kTolerance));
    }
  }
}

// Property 16: the Pb of 12 heads. One head has -0.5.
TEST(D2d, BaseDecaysAreThoseOfThePaper) {
  const std::vector<double> golden = {-0.000244141, -0.015625, -0.0625,   -0.125,
                                      -0.189465,    -0.25,     -0.304753, -0.353553,
                                      -0.39685,     -0.435275, -0.469465, -0.5};
  for (size_t h = 0; h < golden.size(); ++h)
    EXPECT_NEAR(Base(12)[static_cast<int64_t>(h)].item<double>(), golden[h], 1e-6);
  EXPECT_EQ(Base(1).item<double>(), -0.5);
  // In the mixer itself, v of the first of two equal keys has the weight gamma / (1 + gamma).
  BuiltMixer mixer(MixerConfig("d2d", {{"num_heads", 12}}), 12);
  for (const char* name : {"q_proj.weight", "k_proj.weight"}) mixer.Set(name, at::zeros({12, 12}));
  mixer.Set("v_proj.weight", at::eye(12));
  mixer.Set("o_proj.weight", at::eye(12));
  const at::Tensor x = at::zeros({1, 2, 12}, at::kDouble);
  x[0][0].fill_(1);
  const at::Tensor gamma = Base(12).exp();
  EXPECT_TRUE(Close(mixer.Run(x)[0][1], gamma / (1 + gamma), 1e-12));
}

// Properties 6 and 7: without training, D2D is ALiBi's form. With equal trained values per head it
// has one decay per head, and without decay it is plain linear attention.
TEST(D2d, ContainsItsBaselines) {
  const at::Tensor x = Normal({2, 150, kDim}, 4);
  const BuiltMixer d2d(D2d(), kDim), alibi(D2d({{"decay", "alibi"}}), kDim);
  EXPECT_TRUE(Close(d2d.Run(x), alibi.Run(x), kTolerance));

  BuiltMixer trained(D2d(), kDim), per_head(D2d({{"decay", "trained_alibi"}}), kDim);
  const at::Tensor log_decay = at::full({kHeads}, -0.07, at::kDouble);
  trained.Set("Ps", (Base(kHeads) - log_decay).unsqueeze(1).expand({kHeads, kHeadDim}));
  per_head.Set("head_gamma", log_decay);
  EXPECT_TRUE(Close(trained.Run(x), per_head.Run(x), kTolerance));

  trained.Set("Ps", Base(kHeads).unsqueeze(1).expand({kHeads, kHeadDim}));
  const BuiltMixer plain(D2d({{"decay", "none"}}), kDim);
  EXPECT_TRUE(Close(trained.Run(x), plain.Run(x), kTolerance));
}

// Property 8: with a decay factor of 0 only the token itself remains, with finite gradients.
TEST(D2d, CompleteDecayIsTheValueItself) {
  BuiltMixer mixer(D2d(), kDim, at::kFloat);
  mixer.Set("Ps", at::full({1, kDim}, 200.0).requires_grad_());
  const at::Tensor x = Normal({2, 70, kDim}, 5, at::kFloat).requires_grad_();
  const at::Tensor v = at::linear(x, mixer["v_proj.weight"], mixer["v_proj.bias"]);
  const at::Tensor y = mixer.Run(x);
  EXPECT_TRUE(Close(y, at::linear(v, mixer["o_proj.weight"], mixer["o_proj.bias"]), 1e-6));
  for (const at::Tensor& grad : torch::autograd::grad({y.square().sum()}, {x, mixer["Ps"]}))
    EXPECT_TRUE(grad.isfinite().all().item<bool>());
}

// Property 14: decays and growth beyond the range of fp32, compared with sums of logarithms for a
// few rows.
TEST(D2d, NothingOverflows) {
  constexpr int64_t kSeqLen = 8192;  // Growth of e^4096, decay of e^-4096.
  const at::Tensor rows = at::tensor({0L, 1L, 63L, 64L, 700L, 2047L, 5000L, 8190L, 8191L});
  for (const bool exp : {false, true}) {
    for (const double sign : {-1.0, 1.0}) {
      SCOPED_TRACE(testing::Message() << "exp " << exp << ", sign " << sign);
      BuiltMixer mixer(D2d({{"feature_map", exp ? "exp" : "elu"}}), kDim, at::kFloat);
      mixer.Set("Ps", at::full({1, kDim}, sign * (exp ? 25.0 : 0.5)));
      const at::Tensor x = Normal({1, kSeqLen, kDim}, 9, at::kFloat);
      const at::Tensor log_decay =
          (Base(kHeads) - sign * 0.5).unsqueeze(1).expand({kHeads, kHeadDim});
      const at::Tensor y = mixer.Run(x);
      EXPECT_TRUE(y.isfinite().all().item<bool>());
      EXPECT_TRUE(Close(y.index_select(1, rows),
                        Output(mixer, Oracle(Project(mixer, x), log_decay, exp, rows)), 1e-4));
    }
  }
}

// Property 14: no single factor is clamped. For head 12 of 12 with Ps = -0.2, the weight at
// distance 511 is exp(-0.3 * 511). The published form clamps exp(Pb (i - j)) at exp(-65) and gives
// 1.4e16.
TEST(D2d, FarTokensWeighWhatTheFormulaSays) {
  constexpr int64_t kSeqLen = 512;
  BuiltMixer mixer(MixerConfig("d2d", {{"num_heads", 12}}), 12);
  for (const char* name : {"q_proj.weight", "k_proj.weight"}) mixer.Set(name, at::zeros({12, 12}));
  mixer.Set("v_proj.weight", at::eye(12));
  mixer.Set("o_proj.weight", at::eye(12));
  mixer.Set("Ps", at::full({1, 12}, -0.2));
  at::Tensor x = at::zeros({1, kSeqLen, 12}, at::kDouble);
  x[0][0].fill_(1e60);  // The only visible weight of the last head.
  const double gamma = std::exp(static_cast<double>(static_cast<float>(-0.5)) + 0.2f);
  const double want = 1e60 * std::pow(gamma, 511) * (1 - gamma) / (1 - std::pow(gamma, 512));
  EXPECT_NEAR(mixer.Run(x)[0][511][11].item<double>() / want, 1, 1e-6);  // Ps is fp32.
}

// Property 15: with exp features, a constant added to all keys of a head or to a query's row
// changes nothing, even near 80.
TEST(D2d, ExponentialFeaturesHaveNoScale) {
  BuiltMixer mixer(D2d({{"feature_map", "exp"}}), kDim, at::kFloat);
  const at::Tensor x = Normal({2, 130, kDim}, 10, at::kFloat);
  const at::Tensor before = mixer.Run(x);
  for (const char* name : {"q_proj.bias", "k_proj.bias"}) {
    const at::Tensor bias = mixer[name];
    mixer.Set(name, bias + 80);
    // Logits of 80 are rounded with an error of 80 * 2^-24.
    EXPECT_TRUE(Close(mixer.Run(x), before, 3e-5)) << name;
    mixer.Set(name, bias);
  }
}

// Property 18: only the numerator is rotated, the denominator is not.
TEST(D2d, RotationDoesNotChangeTheDenominator) {
  for (const bool exp : {false, true}) {
    const MixerConfig config =
        D2d({{"decay", "none"}, {"rope_theta", 10000}, {"feature_map", exp ? "exp" : "elu"}});
    const BuiltMixer mixer(config, kDim);
    const at::Tensor x = Normal({2, 80, kDim}, 14);
    Heads heads = Project(mixer, x);
    heads.q = LogFeature(heads.q, exp).exp(), heads.k = LogFeature(heads.k, exp).exp();
    const at::Tensor angle =
        at::arange(80, at::kDouble).view({80, 1, 1}) *
        at::pow(10000.0, -at::arange(kHeadDim / 2, at::kDouble) * 2 / kHeadDim);
    const auto rotated = [&](const at::Tensor& y) {
      const at::Tensor a = y.narrow(-1, 0, kHeadDim / 2),
                       b = y.narrow(-1, kHeadDim / 2, kHeadDim / 2);
      return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, -1);
    };
    const auto scores = [](const at::Tensor& q, const at::Tensor& k) {
      return at::einsum("bthd,bshd->bhts", {q, k}).tril();
    };
    const at::Tensor weights = scores(rotated(heads.q), rotated(heads.k)) /
                               scores(heads.q, heads.k).sum(-1, /*keepdim=*/true);
    const at::Tensor o = at::einsum("bhts,bshd->bthd", {weights, heads.v});
    // The rotary table is fp32.
    EXPECT_TRUE(Close(mixer.Run(x), Output(mixer, o), 1e-5)) << "exp " << exp;
  }
}

// Property 18: a trained decay at its bound has no gradient.
TEST(D2d, BoundedDecaysHaveNoGradientBeyondTheBound) {
  BuiltMixer mixer(D2d({{"decay", "trained_alibi"}, {"max_log_decay", 0}}), kDim);
  at::Tensor gamma = at::full({kHeads}, -0.2, at::kDouble);
  gamma[1] = 0.3;
  mixer.Set("head_gamma", gamma.requires_grad_());
  const at::Tensor y = mixer.Run(Normal({1, 40, kDim}, 15));
  const at::Tensor grad = torch::autograd::grad({y.square().sum()}, {mixer["head_gamma"]})[0];
  EXPECT_NE(grad[0].item<double>(), 0);
  EXPECT_EQ(grad[1].item<double>(), 0);
  // Without the bound there is a gradient.
  BuiltMixer free(D2d({{"decay", "trained_alibi"}}), kDim);
  free.Set("head_gamma", gamma.detach().clone().requires_grad_());
  const at::Tensor loss = free.Run(Normal({1, 40, kDim}, 15)).square().sum();
  EXPECT_NE(torch::autograd::grad({loss}, {free["head_gamma"]})[0][1].item<double>(), 0);
}

// The same with a decay per channel: the first two channels are beyond the bound.
TEST(D2d, BoundedChannelsHaveNoGradientBeyondTheBound) {
  BuiltMixer mixer(D2d({{"max_log_decay", 0}}), kDim);
  at::Tensor ps = at::full({1, kDim}, 0.2, at::kDouble);
  ps.narrow(1, 0, 2).fill_(-2);
  mixer.Set("Ps", ps.requires_grad_());
  const at::Tensor y = mixer.Run(Normal({1, 40, kDim}, 15));
  const at::Tensor grad = torch::autograd::grad({y.square().sum()}, {mixer["Ps"]})[0];
  EXPECT_TRUE((grad.narrow(1, 0, 2) == 0).all().item<bool>());
  EXPECT_TRUE((grad.narrow(1, 2, kDim - 2) != 0).all().item<bool>());
}

// Returns small versions of the paper's models, with a vocabulary of 50.
std::vector<ModelConfig> SmallModels() {
  std::vector<ModelConfig> models;
  for (const char* map : {"elu", "exp"})
    for (const char* decay : {"d2d", "alibi", "trained_alibi", "none", "rope"}) {
      const bool rotates = std::string(decay) == "rope";
      ModelConfig config = {.vocab_size = 50, .model_dim = kDim, .num_layers = 2};
      config.initializer_range = 0.3;
      config.norm = NormConfig("layer_norm", {{"eps", 1e-5}});
      config.mixer = D2d({{"feature_map", map},
                          {"decay", rotates ? "none" : decay},
                          {"rope_theta", rotates ? 10000.0 : 0.0}});
      config.channel_mixer = ChannelMixerConfig("swiglu", {{"width", 24}, {"bias", true}});
      if (std::string(decay) == "none")
        config.positions = PositionsConfig("learned", {{"max_positions", 100}});
      config.head.tied = true;
      models.push_back(config);
    }
  return models;
}

// Property 20: without dropout, training and evaluation give the same logits. 64 greedy tokens that
// are decoded with the recurrent state equal those of forward passes over the whole text.
TEST(D2d, TrainingEvaluationAndDecodeAgree) {
  constexpr int64_t kPrompt = 9, kTokens = 64;
  const c10::AutoGradMode no_grad(false);
  for (const ModelConfig& config : SmallModels()) {
    SCOPED_TRACE(config.mixer.Get<std::string>("feature_map") + ", " +
                 config.mixer.Get<std::string>("decay"));
    LanguageModel model(config);
    model.BindOwnMemory(1, false);
    for (int i = 0; i < model.parameters().size(); ++i) {  // As if decays were trained.
      const dist::ParamSpec& spec = model.parameters().specs()[i];
      if (spec.name.ends_with("Ps"))
        model.parameters().tensor(i).copy_(Normal(spec.shape, 3) * 0.1);
      if (spec.name.ends_with("head_gamma")) model.parameters().tensor(i).fill_(-0.1);
    }
    const auto logits = [&](const at::Tensor& tokens, bool training) {
      const auto slice = SequenceSlice::Contiguous(1, tokens.size(1), 0, at::kCPU);
      const std::vector<uint64_t> samples = {4};
      return model.Logits(model.Hidden(tokens, {.slice = &slice,
                                                .training = training,
                                                .seed = 1,
                                                .samples = ops::SampleNumbers(samples, at::kCPU)}));
    };
    at::Tensor text = (halflife::test::Uniform({1, kPrompt}, 5) * 50).to(at::kLong);
    EXPECT_TRUE(test::BitEqual(logits(text, true), logits(text, false)));
    ModelState state = model.EmptyState(1);
    at::Tensor next;
    for (int64_t t = 0; t < kPrompt; ++t) next = model.Step(text.select(1, t), state).argmax(-1);
    for (int64_t t = 0; t < kTokens; ++t) {
      text = at::cat({text, next.unsqueeze(1)}, 1);
      next = model.Step(next, state).argmax(-1);
    }
    // Each token is the most likely one after all previous tokens.
    const at::Tensor likeliest = logits(text, false).argmax(-1);
    EXPECT_TRUE(likeliest.narrow(1, kPrompt - 1, kTokens).equal(text.narrow(1, kPrompt, kTokens)));
    EXPECT_TRUE(likeliest.select(1, kPrompt + kTokens - 1).equal(next));
  }
}

ModelConfig Gpt2Shell(const MixerConfig& mixer) {
  ModelConfig config = {.vocab_size = 50257, .model_dim = 768, .num_layers = 12};
  config.norm = NormConfig("layer_norm", {{"eps", 1e-5}});
  config.mixer = mixer;
  config.channel_mixer = ChannelMixerConfig("swiglu", {{"width", 2048}, {"bias", true}});
  config.head.tied = true;
  return config;
}

int64_t CountOf(const ModelConfig& config) {
  return LanguageModel(config).CountParameters().total();
}

// Property 19: exact parameter counts.
TEST(D2d, CountsOfTheShell) {
  EXPECT_EQ(CountOf(Gpt2Shell(MixerConfig("d2d"))), 123674880);
  EXPECT_EQ(CountOf(Gpt2Shell(MixerConfig("d2d", {{"feature_map", "exp"}}))), 123674880);
  EXPECT_EQ(CountOf(Gpt2Shell(MixerConfig("d2d", {{"decay", "alibi"}}))), 123665664);
  EXPECT_EQ(CountOf(Gpt2Shell(MixerConfig("d2d", {{"decay", "none"}, {"rope_theta", 10000}}))),
            123665664);
  EXPECT_EQ(CountOf(Gpt2Shell(MixerConfig("d2d", {{"decay", "trained_alibi"}}))), 123665808);
  ModelConfig ape = Gpt2Shell(MixerConfig("d2d", {{"decay", "none"}}));
  ape.positions = PositionsConfig("learned", {{"max_positions", 1024}});
  ape.channel_mixer = ChannelMixerConfig("mlp", {{"activation", "gelu_tanh"}, {"bias", true}});
  EXPECT_EQ(CountOf(ape), 124439808);
}

// Property 19: the trained decay starts at 0 and has weight decay. Attention's last matrix starts
// smaller.
TEST(D2d, StartsAsThePaperSays) {
  const BuiltMixer mixer(MixerConfig("d2d"), 768, at::kFloat, 0.02, {.num_layers = 12});
  EXPECT_EQ(mixer["Ps"].abs().max().item<double>(), 0);
  for (const dist::ParamSpec& spec : mixer.parameters().specs())
    EXPECT_EQ(spec.weight_decay, spec.shape.size() == 2) << spec.name;
  const auto std_dev = [&](const char* name) { return mixer[name].std().item<double>(); };
  // Five standard errors of sigma, sigma / sqrt(2 n), n = 768^2.
  const double error = 5 / std::sqrt(2.0 * 768 * 768);
  EXPECT_NEAR(std_dev("q_proj.weight"), 0.02, 0.02 * error);
  EXPECT_NEAR(std_dev("o_proj.weight"), 0.02 / std::sqrt(24.0), 0.02 * error / std::sqrt(24.0));
  const BuiltMixer kept(MixerConfig("d2d", {{"regularise_decay", false}}), 768);
  for (const dist::ParamSpec& spec : kept.parameters().specs())
    EXPECT_EQ(spec.weight_decay, spec.shape.size() == 2 && spec.name != "Ps") << spec.name;
}

TEST(D2d, SaysWhatDoesNotFit) {
  const auto problems = [](const std::vector<Assignment>& options) {
    MixerConfig config("d2d", options);
    return Join(config.Resolve({.model_dim = 30, .num_layers = 1}), "\n");
  };
  EXPECT_THAT(problems({{"num_heads", 7}}), testing::HasSubstr("num_heads 7 must divide"));
  EXPECT_THAT(problems({{"num_heads", 5}, {"rope_theta", 10000}}),
              testing::HasSubstr("rope_theta with the decay d2d. Use decay none."));
  EXPECT_THAT(problems({{"num_heads", 2}, {"rope_theta", 10000}, {"decay", "none"}}),
              testing::HasSubstr("must be even"));
  EXPECT_EQ(problems({{"num_heads", 5}, {"decay", "alibi"}, {"max_log_decay", 0}}), "");
  for (const char* decay : {"alibi", "none"})
    EXPECT_THAT(problems({{"num_heads", 5}, {"decay", decay}, {"max_log_decay", -0.5}}),
                testing::HasSubstr(std::string("max_log_decay -0.5 with the decay ") + decay));
  EXPECT_THAT(problems({{"num_heads", 5}, {"decay", "alibi2"}}),
              testing::HasSubstr("known: d2d, alibi, trained_alibi, none"));
}

}  // namespace
}  // namespace halflife::model
