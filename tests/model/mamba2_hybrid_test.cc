// Models of Mamba-2 and softmax attention: layers of either kind, some without a channel mixer
// (Nemotron-H), and both in one layer (Falcon-H1). Packed documents, decoding and gradients.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/language_model.h"
#include "model/mixers/parallel.h"
#include "ops/random_tensors.h"

namespace halflife::model {
namespace {

using test::Close;

constexpr int64_t kVocab = 37, kSeqLen = 60;
// fp32 logits of order 1, whose states and scores are summed in another order.
constexpr double kTolerance = 1e-4;

MixerConfig Mamba2() {
  return MixerConfig("mamba2",
                     {{"num_heads", 4}, {"head_dim", 4}, {"state_size", 5}, {"num_groups", 2}});
}
MixerConfig Attention() { return MixerConfig("softmax", {{"num_heads", 4}, {"num_kv_heads", 2}}); }

ModelConfig Alternating() {
  ModelConfig config = {.vocab_size = kVocab, .model_dim = 16, .num_layers = 4, .mixer = Mamba2()};
  config.channel_mixer =
      ChannelMixerConfig("mlp", {{"width", 24}, {"activation", "relu2"}, {"bias", true}});
  MixerConfig attention = Attention();
  attention.Set("rope_theta", 0);
  config.hybrid = {{.layers = {0, 2}, .channel_mixer = ChannelMixerConfig("none")},
                   {.layers = {2}, .mixer = attention}};
  return config;
}
ModelConfig BothInEachLayer() {
  ModelConfig config = {.vocab_size = kVocab, .model_dim = 16, .num_layers = 2};
  config.mixer =
      ParallelMixer({ParallelPart(Mamba2(), 1.5, 0.5), ParallelPart(Attention(), 1, 0.75)});
  config.channel_mixer = ChannelMixerConfig(
      "swiglu", {{"width", 24}, {"gate_multiplier", 0.5}, {"down_multiplier", 2.0}});
  config.embedding.scale = 2;
  config.head.logit_scale = 0.5;
  return config;
}

struct Named {
  std::string name;
  ModelConfig config;
};

class Mamba2HybridTest : public testing::TestWithParam<Named> {
 protected:
  Mamba2HybridTest() : model_(GetParam().config) { model_.BindOwnMemory(1, true); }
  static at::Tensor Tokens(uint64_t seed) {
    return (test::Uniform({2, kSeqLen}, seed) * static_cast<double>(kVocab)).to(at::kLong);
  }
  at::Tensor Logits(const at::Tensor& tokens, const SequenceSlice& slice) const {
    return model_.Logits(model_.Hidden(tokens, {.slice = &slice}));
  }
  LanguageModel model_;
};
INSTANTIATE_TEST_SUITE_P(All, Mamba2HybridTest,
                         testing::Values(Named{"alternating", Alternating()},
                                         Named{"both_in_each_layer", BothInEachLayer()}),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(Mamba2HybridTest, PackedDocumentsAreAlone) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = Tokens(1);
  const std::vector<int32_t> starts = {0, 7, 8, 41, 60, 93, 120};
  const at::Tensor packed =
      Logits(tokens, SequenceSlice::Packed(2, kSeqLen, starts, at::kCPU)).flatten(0, 1);
  const at::Tensor flat = tokens.flatten();
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t begin = starts[i], length = starts[i + 1] - begin;
    const at::Tensor alone = Logits(flat.narrow(0, begin, length).unsqueeze(0),
                                    SequenceSlice::Contiguous(1, length, 0, at::kCPU));
    EXPECT_TRUE(Close(packed.narrow(0, begin, length), alone[0], kTolerance)) << i;
  }
}

TEST_P(Mamba2HybridTest, DecodesWhatItComputes) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = Tokens(2);
  const at::Tensor want = Logits(tokens, SequenceSlice::Contiguous(2, kSeqLen, 0, at::kCPU));
  ModelState state = model_.EmptyState(2);
  for (int64_t t = 0; t < kSeqLen; ++t)
    ASSERT_TRUE(Close(model_.Step(tokens.select(1, t), state), want.select(1, t), kTolerance)) << t;
}

TEST_P(Mamba2HybridTest, EveryParameterGetsAGradient) {
  const auto slice = SequenceSlice::Contiguous(2, kSeqLen, 0, at::kCPU);
  model_.Loss(Tokens(3), Tokens(4), {.slice = &slice}).objective.backward();
  for (int i = 0; i < model_.parameters().size(); ++i) {
    const at::Tensor& grad = model_.parameters().tensor(i).grad();
    const std::string& name = model_.parameters().specs()[i].name;
    ASSERT_TRUE(grad.defined()) << name;
    EXPECT_TRUE(grad.isfinite().all().item<bool>()) << name;
    EXPECT_GT(grad.abs().max().item<float>(), 0) << name;
  }
}

}  // namespace
}  // namespace halflife::model
