// Memory per token for rows of growing length, in training and in a decode step. Time is measured
// by benchmarks (bench_decay_attention --lengths, bench_focus_pool).
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/language_model.h"
#include "model/mixers/built_mixer.h"
#include "support/peak_bytes.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Normal;
using test::PeakBytes;

constexpr int64_t kDim = 64, kTokens = 16384;  // Tokens of all rows.

// Divides all tokens into rows of `seq_len`.
at::Tensor Rows(int64_t seq_len) {
  return Normal({kTokens / seq_len, seq_len, kDim}, 1, at::kFloat).requires_grad_();
}
void Pass(const BuiltMixer& mixer, const at::Tensor& x) {
  torch::autograd::grad({mixer.Run(x)}, {x}, {x.detach()});
}
double PeakOf(const BuiltMixer& mixer, const at::Tensor& x) {
  const PeakBytes bytes;
  Pass(mixer, x);
  return bytes.peak();
}

// Compares the memory per token for rows of 2,048 and 16,384 tokens. If it were quadratic, the
// ratio would be 8.
void ExpectLinear(const MixerConfig& config) {
  const BuiltMixer mixer(config, kDim, at::kFloat);
  const double few = PeakOf(mixer, Rows(2048)), many = PeakOf(mixer, Rows(kTokens));
  EXPECT_GT(few, 4.0 * kTokens * kDim);
  EXPECT_NEAR(many / few, 1, 0.2) << "bytes";
}

// Property 24 of D2D.
TEST(CostOfRows, D2dIsLinear) {
  for (const char* map : {"elu", "exp"})
    ExpectLinear(MixerConfig("d2d", {{"num_heads", 1}, {"feature_map", map}}));
}

// Property 24: a decode step of D2D uses the same number of bytes at every position.
TEST(CostOfRows, D2dDecodesInConstantMemory) {
  const c10::AutoGradMode no_grad(false);
  LanguageModel model({.vocab_size = 37,
                       .model_dim = kDim,
                       .num_layers = 2,
                       .mixer = MixerConfig("d2d", {{"num_heads", 2}})});
  model.BindOwnMemory(1, false);
  ModelState state = model.EmptyState(1);
  const at::Tensor token = (test::Uniform({1}, 1) * 37).to(at::kLong);
  model.Step(token, state);
  const int64_t bytes = state.bytes();
  double first = 0;
  for (int64_t t = 1; t < 1500; ++t) {
    const PeakBytes of_step;
    model.Step(token, state);
    if (t == 1) first = of_step.peak();
    ASSERT_NEAR(of_step.peak(), first, 0.02 * first) << t;  // The number of scalar tensors varies.
    ASSERT_EQ(state.bytes(), bytes) << t;
  }
}

// Plans count the bytes that a forward pass keeps for its backward, within a few per cent.
TEST(CostOfRows, LinearMixersKeepWhatPlansCount) {
  constexpr int64_t kRows = 2, kLength = 512, kWidth = 256;
  const auto with = [](const char* mixer, const std::vector<Assignment>& options) {
    return MixerConfig(mixer, options);
  };
  for (const MixerConfig& config :
       {with("gla", {}), with("gla", {{"use_short_conv", true}}),
        with("gla", {{"feature_map", "relu"}}), with("gla", {{"feature_map", "relu2"}}),
        with("gla", {{"feature_map", "quick_gelu"}}), with("lightning", {}), with("hgrn2", {}),
        with("hgrn2", {{"use_short_conv", true}}), with("gsa", {}),
        with("gsa", {{"use_short_conv", true}}), with("delta_net", {}),
        with("delta_net", {{"use_short_conv", false}}), with("delta_net", {{"qk_norm", "sum"}}),
        with("gated_delta_net", {{"expand_v", 2}}), with("kda", {}),
        with("gated_delta_product", {}), with("gated_delta_product", {{"num_householder", 4}})}) {
    const BuiltMixer mixer(config, kWidth, at::kFloat, 0.02, {.layer = 1, .num_layers = 2});
    for (int i = 0; i < mixer.parameters().size(); ++i)
      mixer.parameters().tensor(i).requires_grad_();
    const at::Tensor x = Normal({kRows, kLength, kWidth}, 1, at::kFloat).requires_grad_();
    mixer.Run(x);
    const PeakBytes bytes;
    const at::Tensor y = mixer.Run(x);
    // Backward reads x, which was there before, but not y.
    const double kept = bytes.now() - static_cast<double>(y.nbytes()) +
                        static_cast<double>(x.nbytes()),
                 planned = kRows * kLength * mixer->ActivationBytesPerToken(kLength, 4);
    EXPECT_NEAR(kept, planned, 0.06 * planned) << config.name();
  }
}

// Property 20 of LEAP: windows of any length do not store their tokens separately.
TEST(CostOfRows, PoolsAreLinear) {
  for (const int64_t window : {int64_t{0}, int64_t{128}, int64_t{4096}})
    ExpectLinear(MixerConfig("leap", {{"num_heads", 2}, {"windows", "same"}, {"window", window}}));
}

}  // namespace
}  // namespace halflife::model
