// The explanations of window pools: their shares reproduce the layer's output within the model from
// the mixer's inputs.
#include "eval/attention_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/random_tensors.h"
#include "support/expect_error.h"

namespace halflife::eval {
namespace {

using model::LanguageModel;
using model::MixerConfig;
using model::ModelConfig;
using model::SequenceSlice;

constexpr int64_t kSeqLen = 30;
// Shares are relative to the row's sum, at least 1, and the preset's eps of 1e-5. They are rounded
// to fp32.
constexpr double kTolerance = 1.1e-5;

ModelConfig Config(const MixerConfig& mixer) {
  ModelConfig config = {.vocab_size = 37, .model_dim = 16, .num_layers = 3};
  config.initializer_range = 0.3;
  config.mixer = mixer;
  config.channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", int64_t{24}}});
  return config;
}

at::Tensor Tokens() { return (test::Uniform({1, kSeqLen}, 1) * 37.0).to(at::kLong); }

// Layer 1 is retention and is left out. A token's shares come from earlier tokens of its document
// and window and itself, and add up to 1.
TEST(Explanations, AreOfTheLayersThatPool) {
  ModelConfig config = Config(MixerConfig(
      "leap", {{"num_heads", int64_t{2}}, {"windows", "same"}, {"window", int64_t{8}}}));
  config.hybrid = {{.layers = {1}, .mixer = MixerConfig("retention")}};
  LanguageModel model(config);
  model.BindOwnMemory(3, /*requires_grad=*/false);
  const auto slice = SequenceSlice::Packed(1, kSeqLen, {{0, 11, 30}}, at::kCPU);
  const std::vector<LayerExplanation> layers = ExplainLayers(model, Tokens(), slice);
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].layer, 0);
  EXPECT_EQ(layers[1].layer, 2);
  for (const LayerExplanation& layer : layers) {
    ASSERT_EQ(layer.pools.size(), 1u);
    const at::Tensor row = layer.pools[0].Row(20)[0].mean(1);
    EXPECT_NEAR(row.sum().item<double>(), 1, kTolerance);
    for (const TokenShare& token : LargestTokens(row, 100)) {
      EXPECT_GE(token.token, 20 - 7);
      EXPECT_LE(token.token, 20);
    }
    const at::Tensor of_document = layer.pools[0].Row(12)[0].narrow(0, 11, 2).mean(1);
    EXPECT_NEAR(of_document.sum().item<double>(), 1, kTolerance);
  }
  // Layer 2 pools the outputs of the layers below it.
  EXPECT_FALSE(layers[0].pools[0].log_weight.equal(layers[1].pools[0].log_weight));
}

TEST(Explanations, FastformerHasTwoPoolsPerLayer) {
  LanguageModel model(Config(MixerConfig("fastformer", {{"num_heads", int64_t{2}}})));
  model.BindOwnMemory(3, /*requires_grad=*/false);
  const auto slice = SequenceSlice::Contiguous(1, kSeqLen, 0, at::kCPU);
  const std::vector<LayerExplanation> layers = ExplainLayers(model, Tokens(), slice);
  ASSERT_EQ(layers.size(), 3u);
  for (const LayerExplanation& layer : layers) EXPECT_EQ(layer.pools.size(), 2u);
}

TEST(Explanations, OtherMixersAreRefused) {
  LanguageModel model(Config(MixerConfig("retention")));
  model.BindOwnMemory(3, /*requires_grad=*/false);
  const auto slice = SequenceSlice::Contiguous(1, kSeqLen, 0, at::kCPU);
  EXPECT_HL_ERROR(ExplainLayers(model, Tokens(), slice), ExitCode::kUsage,
                  "no layer of retention can explain", "with layers of leap or fastformer.");
}

TEST(Explanations, NameTheLargestShares) {
  const auto named = [](const std::vector<double>& shares, int64_t count) {
    std::vector<int64_t> places;
    for (const TokenShare& token : LargestTokens(at::tensor(shares), count))
      places.push_back(token.token);
    return places;
  };
  EXPECT_THAT(named({0.1, 0.4, 0, 0.4, 0.2}, 3), testing::ElementsAre(1, 3, 4));
  EXPECT_THAT(named({0.1, 0, 0.4}, 9), testing::ElementsAre(2, 0));
}

}  // namespace
}  // namespace halflife::eval
