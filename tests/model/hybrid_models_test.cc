// Whole models of the patterns of published hybrids, whose layers differ in mixer and block:
// documents in one row are independent, prefill and steps equal the whole row, rows split over
// ranks give the same loss and gradients, and recomputation gives the same bits. fp64, except for
// bits and for the gradients of all parameters.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <string>
#include <vector>

#include "dist/local_communicator.h"
#include "model/language_model.h"
#include "model/mixers/parallel.h"
#include "model/model_cost.h"
#include "model/sequence_parallel.h"
#include "ops/random_tensors.h"

namespace halflife::model {
namespace {

using test::Close;

constexpr int64_t kTokens = 150, kPatternVocab = 37;
// Three layers of sums of a few hundred terms of order 1, in another order.
constexpr double kPatternTolerance = 1e-9;

// Qwen3-Next: zero-centered norms, and every other layer is gated attention.
ModelConfig QwenPattern() {
  ModelConfig config = {.vocab_size = kPatternVocab, .model_dim = 16, .num_layers = 3};
  config.initializer_range = 0.2;
  config.norm = NormConfig("rms_norm", {{"zero_centered", true}});
  config.channel_mixer = ChannelMixerConfig("swiglu", {{"width", 24}});
  config.mixer = MixerConfig("gated_delta_net", {{"num_heads", 2}, {"num_v_heads", 4}});
  config.hybrid = {{.layers = {1},
                    .mixer = MixerConfig("softmax", {{"num_heads", 4},
                                                     {"num_kv_heads", 2},
                                                     {"head_dim", 8},
                                                     {"qk_norm", true},
                                                     {"qk_norm_zero_centered", true},
                                                     {"output_gate", "sigmoid"},
                                                     {"partial_rotary_factor", 0.25}})}};
  return config;
}

// OLMo Hybrid: layers of attention have their norms after the branches.
ModelConfig OlmoPattern() {
  ModelConfig config = QwenPattern();
  config.norm = NormConfig();
  config.mixer = MixerConfig("gated_delta_net",
                             {{"num_heads", 2}, {"allow_neg_eigval", true}, {"norm_eps", 1e-5}});
  config.hybrid = {{.layers = {2},
                    .mixer = MixerConfig("softmax", {{"num_heads", 2},
                                                     {"qk_norm", true},
                                                     {"qk_norm_over", "all_heads"},
                                                     {"rope_theta", 0.0}}),
                    .block = BlockConfig("output_norm")}};
  return config;
}

// RWKV-7: later layers mix their values with those of the first one, and every other layer is a
// channel mixing.
ModelConfig Rwkv7Pattern() {
  ModelConfig config = QwenPattern();
  config.norm = NormConfig("layer_norm");
  config.num_layers = 4;
  config.channel_mixer = ChannelMixerConfig(kNoChannelMixer);
  config.mixer = MixerConfig("rwkv7", {{"head_dim", 8}});
  config.hybrid = {
      {.every = 2, .first = 1, .mixer = MixerConfig("rwkv_channel_mix", {{"form", "rwkv7"}})}};
  return config;
}

MixerConfig PatternMamba2() {
  return MixerConfig("mamba2",
                     {{"num_heads", 4}, {"head_dim", 4}, {"state_size", 5}, {"num_groups", 2}});
}
// Nemotron-H: layers of Mamba-2 or attention, some without a channel mixer.
ModelConfig NemotronPattern() {
  ModelConfig config = QwenPattern();
  config.norm = NormConfig();
  config.num_layers = 4;
  config.mixer = PatternMamba2();
  config.channel_mixer =
      ChannelMixerConfig("mlp", {{"width", 24}, {"activation", "relu2"}, {"bias", true}});
  config.hybrid = {{.layers = {0, 2}, .channel_mixer = ChannelMixerConfig(kNoChannelMixer)},
                   {.layers = {2},
                    .mixer = MixerConfig(
                        "softmax", {{"num_heads", 4}, {"num_kv_heads", 2}, {"rope_theta", 0}})}};
  return config;
}

// Falcon-H1: Mamba-2 and attention in each layer, and factors.
ModelConfig FalconPattern() {
  ModelConfig config = QwenPattern();
  config.norm = NormConfig();
  config.num_layers = 2;
  config.mixer = ParallelMixer(
      {ParallelPart(PatternMamba2(), 1.5, 0.5),
       ParallelPart(MixerConfig("softmax", {{"num_heads", 4}, {"num_kv_heads", 2}}), 1, 0.75)});
  config.channel_mixer = ChannelMixerConfig(
      "swiglu", {{"width", 24}, {"gate_multiplier", 0.5}, {"down_multiplier", 2.0}});
  config.hybrid = {};
  config.embedding.scale = 2;
  config.head.logit_scale = 0.5;
  return config;
}

// Three kinds of layers: bounds that layers share, several steps per token, and windows.
ModelConfig ThreeKindsPattern() {
  ModelConfig config = QwenPattern();
  config.norm = NormConfig();
  config.num_layers = 4;
  config.mixer = MixerConfig("hgrn2", {{"num_heads", 2}, {"use_short_conv", true}});
  config.hybrid = {
      {.layers = {1}, .mixer = MixerConfig("softmax", {{"num_heads", 2}, {"window", 9}})},
      {.layers = {2},
       .mixer = MixerConfig("gated_delta_product", {{"num_heads", 2}, {"num_householder", 3}})}};
  return config;
}

struct Pattern {
  std::string name;
  ModelConfig config;
};
void PrintTo(const Pattern& pattern, std::ostream* out) { *out << pattern.name; }

at::Tensor PatternTokens(uint64_t seed) {
  return (test::Uniform({1, kTokens}, seed) * double{kPatternVocab}).to(at::kLong);
}

SequenceSlice OneRow(int64_t begin, int64_t count) {
  return SequenceSlice::Contiguous(1, count, begin, at::kCPU);
}

class HybridPattern : public testing::TestWithParam<Pattern> {
 protected:
  // Weights that start at 0 get other values, so that norms and gates matter.
  static std::unique_ptr<LanguageModel> Make(at::ScalarType dtype) {
    auto model = std::make_unique<LanguageModel>(GetParam().config);
    model->BindOwnMemory(3, /*requires_grad=*/false);
    for (int i = 0; i < model->parameters().size(); ++i) {
      at::Tensor value = model->parameters().tensor(i).to(dtype);
      if (!value.any().item<bool>()) value = test::Normal(value.sizes().vec(), i, dtype) * 0.3;
      model->parameters().Bind(i, value.clone().requires_grad_(true));
    }
    return model;
  }
  // Returns the loss, then all gradients.
  static std::vector<at::Tensor> Trained(const LanguageModel& model, const SequenceSlice& slice,
                                         const at::Tensor& tokens, const at::Tensor& targets,
                                         Recompute recompute = Recompute::kNone) {
    const LossSums sums = model.Loss(
        tokens, targets, {.slice = &slice, .training = true, .recompute = recompute, .seed = 5});
    sums.objective.backward();
    std::vector<at::Tensor> results = {sums.loss.detach()};
    for (int i = 0; i < model.parameters().size(); ++i)
      results.push_back(model.parameters().tensor(i).grad());
    return results;
  }
};

INSTANTIATE_TEST_SUITE_P(All, HybridPattern,
                         testing::Values(Pattern{"qwen", QwenPattern()},
                                         Pattern{"olmo", OlmoPattern()},
                                         Pattern{"rwkv7", Rwkv7Pattern()},
                                         Pattern{"nemotron", NemotronPattern()},
                                         Pattern{"falcon", FalconPattern()},
                                         Pattern{"three_kinds", ThreeKindsPattern()}),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(HybridPattern, PackedDocumentsAreThoseOfSeparateRows) {
  const at::NoGradGuard no_grad;
  const auto model = Make(at::kDouble);
  const at::Tensor tokens = PatternTokens(1);
  const std::vector<int32_t> starts = {0, 1, 3, 66, 130, kTokens};
  const SequenceSlice packed = SequenceSlice::Packed(1, kTokens, starts, at::kCPU);
  const at::Tensor got = model->Hidden(tokens, {.slice = &packed});
  const auto all = OneRow(0, kTokens);
  EXPECT_FALSE(Close(got, model->Hidden(tokens, {.slice = &all}), 1e-3)) << "one document";
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t begin = starts[i], count = starts[i + 1] - begin;
    const SequenceSlice alone = OneRow(0, count);
    EXPECT_TRUE(Close(got.narrow(1, begin, count),
                      model->Hidden(tokens.narrow(1, begin, count), {.slice = &alone}),
                      kPatternTolerance))
        << "document " << i;
  }
}

TEST_P(HybridPattern, PrefillAndStepsAreTheWholeRow) {
  const at::NoGradGuard no_grad;
  const auto model = Make(at::kDouble);
  const at::Tensor tokens = PatternTokens(1);
  const auto whole = OneRow(0, kTokens), prompt = OneRow(0, 67);
  const at::Tensor want = model->Logits(model->Hidden(tokens, {.slice = &whole}));
  ModelState state = model->EmptyState(1);
  model->Hidden(tokens.narrow(1, 0, 67), {.slice = &prompt}, &state);
  for (int64_t t = 67; t < kTokens; ++t)
    ASSERT_TRUE(
        Close(model->Step(tokens.select(1, t), state), want.select(1, t), kPatternTolerance))
        << t;
  EXPECT_EQ(model->constant_state(), GetParam().name == "rwkv7");
}

TEST_P(HybridPattern, EveryParameterGetsAGradient) {
  const auto model = Make(at::kFloat);
  Trained(*model, OneRow(0, kTokens), PatternTokens(3), PatternTokens(4));
  for (int i = 0; i < model->parameters().size(); ++i) {
    const at::Tensor& grad = model->parameters().tensor(i).grad();
    const std::string& name = model->parameters().specs()[i].name;
    ASSERT_TRUE(grad.defined()) << name;
    EXPECT_TRUE(grad.isfinite().all().item<bool>()) << name;
    EXPECT_GT(grad.abs().max().item<float>(), 0) << name;
  }
}

TEST_P(HybridPattern, CountsAddUp) {
  const auto model = Make(at::kFloat);
  EXPECT_EQ(model->CountParameters().total(), model->parameters().num_elements());
  EXPECT_GT(ModelCost(*model, kTokens).ActivationBytesPerToken(4), 0);
}

TEST_P(HybridPattern, RowsSplitOverRanksGiveTheSameGradients) {
  const at::Tensor tokens = PatternTokens(1), targets = PatternTokens(2);
  const std::vector<int32_t> starts = {0, 40, 75, 76, kTokens};
  const SequenceSlice packed = SequenceSlice::Packed(1, kTokens, starts, at::kCPU);
  const std::vector<at::Tensor> want = Trained(*Make(at::kDouble), packed, tokens, targets);
  constexpr int kRanks = 2;
  std::vector<std::vector<at::Tensor>> of_ranks(kRanks);
  dist::LocalWorld::Run(kRanks, [&](dist::Communicator& comm) {
    const SequenceParallel parallel = {.group = MakeSegmentGroup(comm), .lengths = {71, 79}};
    of_ranks[static_cast<size_t>(comm.rank())] =
        Trained(*Make(at::kDouble), parallel.SliceOf(packed), parallel.TokensOf(tokens),
                parallel.TokensOf(targets));
    parallel.group->Settle();
  });
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(Close(of_ranks[0][i] + of_ranks[1][i], want[i], kPatternTolerance)) << i;
}

TEST_P(HybridPattern, RecomputationGivesTheSameBits) {
  const at::Tensor tokens = PatternTokens(1), targets = PatternTokens(2);
  const SequenceSlice slice = OneRow(0, kTokens);
  const std::vector<at::Tensor> want = Trained(*Make(at::kFloat), slice, tokens, targets);
  for (const Recompute recompute : {Recompute::kMixer, Recompute::kBlock}) {
    const std::vector<at::Tensor> got =
        Trained(*Make(at::kFloat), slice, tokens, targets, recompute);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << i;
  }
}

}  // namespace
}  // namespace halflife::model
