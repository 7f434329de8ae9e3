// The losses of pairs of answers against their formulas by autograd, up to the gradients of a
// model.
#include "train/preference/answer_pairs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "eval/batch_tensors.h"
#include "model/language_model.h"

namespace halflife::train {
namespace {

// Returns two rows of 24 tokens: one with two pairs and padding, one with a pair that fills it.
data::Batch PairBatch() {
  data::Batch batch = {.batch_size = 2, .seq_len = 24, .cu_seqlens = {0, 5, 9, 14, 20, 24, 36, 48}};
  for (int32_t t = 0; t < 48; ++t) {
    batch.inputs.push_back(7 * t % 50);
    batch.targets.push_back(data::kNoTarget);
  }
  for (const auto& [begin, end] :
       std::vector<std::pair<int, int>>{{2, 4}, {6, 8}, {11, 13}, {15, 19}, {28, 35}, {40, 47}})
    for (int t = begin; t < end; ++t) batch.targets[t] = batch.inputs[t + 1];
  batch.samples = {0, 1};
  return batch;
}

model::ModelConfig SmallModel() {
  return {.vocab_size = 50,
          .model_dim = 16,
          .num_layers = 2,
          .mixer = model::MixerConfig("gla", {{"num_heads", 2}}),
          .channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", 32}})};
}

TEST(PairRows, FindsTheAnswers) {
  const data::Batch batch = PairBatch();
  EXPECT_EQ(CountPairs(batch), (std::vector<int64_t>{2, 1}));
  const PairRows pairs(batch, at::kCPU, nullptr);
  EXPECT_EQ(pairs.num_pairs(), 3);
  EXPECT_EQ(pairs.max_pairs(), 2);
  const at::Tensor lengths =
      at::tensor({2.0, 2.0, 2.0, 4.0, 7.0, 7.0, 0.0, 0.0}, at::kDouble).view({2, 2, 2});
  EXPECT_TRUE(pairs.lengths().equal(lengths));
  const at::Tensor ones = at::tensor(batch.targets).view({2, 24}).ge(0).to(at::kFloat);
  EXPECT_TRUE(pairs.Sums(ones).equal(lengths));
  EXPECT_TRUE(pairs.AtTokens(lengths).gt(0).equal(ones.gt(0)));
}

// A row of many short pairs: each sum has the tokens of its answer only, and others may be NaN.
TEST(PairRows, AddsUpManyAnswers) {
  constexpr int64_t kPairs = 40, kTokens = 3;
  data::Batch batch = {.batch_size = 1, .seq_len = 2 * kPairs * kTokens, .cu_seqlens = {0}};
  std::vector<float> losses;
  std::vector<double> wanted(2 * kPairs, 0);
  for (int64_t t = 0; t < batch.seq_len; ++t) {
    const bool has_target = t % kTokens > 0;
    batch.inputs.push_back(1);
    batch.targets.push_back(has_target ? 1 : data::kNoTarget);
    losses.push_back(has_target ? 0.1f * static_cast<float>(t + 1) : std::nanf(""));
    if (has_target) wanted[t / kTokens] += losses.back();
    if ((t + 1) % kTokens == 0) batch.cu_seqlens.push_back(static_cast<int32_t>(t + 1));
  }
  const PairRows pairs(batch, at::kCPU, nullptr);
  ASSERT_EQ(pairs.max_pairs(), kPairs);
  const at::Tensor sums = pairs.Sums(at::tensor(losses).unsqueeze(0));
  EXPECT_TRUE(sums.equal(at::tensor(wanted, at::kDouble).view({1, kPairs, 2})));
}

// Computes the formulas of the papers with differentiable operations.
at::Tensor LossByFormula(const PreferenceConfig& config, const at::Tensor& policy,
                         const at::Tensor& reference, const at::Tensor& lengths) {
  const at::Tensor divisor = config.loss == "ipo" ? lengths.clamp_min(1) : at::ones_like(lengths);
  const at::Tensor ratio = (policy - reference) / divisor;  // ln pi - ln ref
  const at::Tensor h = ratio.select(2, 0) - ratio.select(2, 1);
  const at::Tensor loss = config.loss == "ipo" ? (h - 1 / (2 * config.beta)).square()
                                               : -at::log_sigmoid(config.beta * h);
  return (loss * lengths.select(2, 0).gt(0)).sum();
}

// The gradients of a model through the weights of token losses are those of autograd through
// log-softmax. Tolerance: sums of fp32 products, relative to the largest gradient.
TEST(PreferenceLoss, GradientsAreThoseOfAutograd) {
  const data::Batch batch = PairBatch();
  const eval::BatchTensors tensors = eval::ToTensors(batch, at::kCPU);
  const PairRows pairs(batch, at::kCPU, nullptr);
  for (const PreferenceConfig& config : {PreferenceConfig{.loss = "dpo", .beta = 0.3},
                                         PreferenceConfig{.loss = "ipo", .beta = 0.5}}) {
    SCOPED_TRACE(config.loss);
    model::LanguageModel reference(SmallModel()), weighed(SmallModel()), formula(SmallModel());
    reference.BindOwnMemory(/*seed=*/1, /*requires_grad=*/false);
    weighed.BindOwnMemory(/*seed=*/2, /*requires_grad=*/true);
    formula.BindOwnMemory(/*seed=*/2, /*requires_grad=*/true);
    model::ForwardContext context = {.slice = &tensors.slice, .training = true};
    const at::Tensor of_reference = pairs.Sums(
        reference.TokenLosses(tensors.inputs, tensors.targets, {.slice = &tensors.slice}));

    PairLosses losses;
    context.weigh = [&](const at::Tensor& token_losses) {
      losses = ComparePairs(config, {.policy = pairs.Sums(token_losses), .reference = of_reference},
                            pairs.lengths());
      return pairs.AtTokens(losses.weights);
    };
    weighed.Loss(tensors.inputs, tensors.targets, context).objective.backward();

    context.weigh = nullptr;
    const at::Tensor log_p =
        at::log_softmax(formula.Logits(formula.Hidden(tensors.inputs, context)), -1);
    const at::Tensor of_token =
        log_p.gather(2, tensors.targets.clamp_min(0).unsqueeze(2)).squeeze(2);
    const at::Tensor wanted =
        LossByFormula(config, pairs.Sums(of_token), -of_reference, pairs.lengths());
    wanted.backward();

    const at::Tensor sums = SumPairs(losses);
    EXPECT_NEAR(sums[0].item<double>(), wanted.item<double>(), 1e-5 * wanted.item<double>());
    for (int param = 0; param < weighed.parameters().size(); ++param) {
      const at::Tensor want = formula.parameters().tensor(param).grad();
      const at::Tensor got = weighed.parameters().tensor(param).grad();
      ASSERT_TRUE(want.defined() && got.defined());
      EXPECT_LE((got - want).abs().max().item<float>(),
                2e-5f * want.abs().max().item<float>() + 1e-7f)
          << weighed.parameters().specs()[param].name;
    }
  }
}

// Values by hand: equal models have a loss of ln 2 and rewards of 0, and a gap of 1 / beta in
// favour of the chosen answer has ln(1 + 1 / e).
TEST(PreferenceLoss, Values) {
  const at::Tensor lengths = at::tensor({3.0, 5.0}, at::kDouble).view({1, 1, 2});
  const at::Tensor reference = at::tensor({4.0, 6.0}, at::kDouble).view({1, 1, 2});
  const PreferenceConfig config = {.loss = "dpo", .beta = 0.5};
  const at::Tensor equal = SumPairs(ComparePairs(config, {reference, reference}, lengths));
  EXPECT_NEAR(equal[0].item<double>(), std::log(2), 1e-15);
  EXPECT_EQ(equal[3].item<double>(), 0) << "a tie prefers no answer";
  const at::Tensor policy = at::tensor({2.5, 6.5}, at::kDouble).view({1, 1, 2});
  const at::Tensor sums = SumPairs(ComparePairs(config, {policy, reference}, lengths));
  EXPECT_NEAR(sums[0].item<double>(), std::log1p(std::exp(-1)), 1e-15);
  EXPECT_EQ(sums[1].item<double>(), 0.75);
  EXPECT_EQ(sums[2].item<double>(), -0.25);
  EXPECT_EQ(sums[3].item<double>(), 1);
}

}  // namespace
}  // namespace halflife::train
