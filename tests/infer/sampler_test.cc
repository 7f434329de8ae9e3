// Sampling follows temperature, top-k and top-p, and depends only on seed and position.
#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "support/expect_error.h"

namespace halflife::infer {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, -1.0f, 0.0f};

std::map<int32_t, int> Histogram(const SamplerConfig& config, int draws) {
  const Sampler sampler(config);
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.Sample(kLogits, i)];
  return counts;
}

TEST(Sampler, FrequenciesFollowTheSoftmaxAtEachTemperature) {
  constexpr int kDraws = 20000;
  for (const double temperature : {0.5, 1.0, 2.0}) {
    const auto counts = Histogram({.temperature = temperature, .seed = 3}, kDraws);
    double total = 0;
    for (const float logit : kLogits) total += std::exp(logit / temperature);
    for (int32_t id = 0; id < 5; ++id) {
      const double p = std::exp(kLogits[id] / temperature) / total;
      const double sigma = std::sqrt(p * (1 - p) / kDraws);
      const auto found = counts.find(id);
      const double seen = found == counts.end() ? 0 : found->second / double{kDraws};
      EXPECT_NEAR(seen, p, 5 * sigma) << id << " at " << temperature;
    }
  }
}

TEST(Sampler, ZeroTemperatureIsTheArgmax) {
  EXPECT_EQ(Sampler({.temperature = 0}).Sample(kLogits, 9), 1);
}

TEST(Sampler, TopKKeepsTheMostLikely) {
  for (const auto& [id, count] : Histogram({.temperature = 3, .top_k = 2}, 2000)) {
    EXPECT_TRUE(id == 1 || id == 2) << id;
  }
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  // With probabilities 0.63, 0.23, 0.085, ... one token reaches 0.6, and two reach 0.7.
  EXPECT_EQ(Histogram({.top_p = 0.6}, 500).size(), 1u);
  EXPECT_EQ(Histogram({.top_p = 0.7}, 500).size(), 2u);
}

TEST(Sampler, DrawsAreAFunctionOfSeedAndPosition) {
  const Sampler a({.seed = 1}), b({.seed = 1}), c({.seed = 2});
  int differ = 0;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(a.Sample(kLogits, i), b.Sample(kLogits, i));
    differ += a.Sample(kLogits, i) != c.Sample(kLogits, i);
  }
  EXPECT_GT(differ, 20);
}

// Sorting only what a draw reads changes no draw.
TEST(Sampler, LargeVocabulariesFollowTheSortedOrder) {
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = std::sin(static_cast<float>(i * i % 7919)) * 2;
  for (const SamplerConfig& config :
       {SamplerConfig{.temperature = 3}, SamplerConfig{.temperature = 3, .top_k = 700},
        SamplerConfig{.temperature = 3, .top_p = 0.8}}) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    std::map<int32_t, size_t> rank;
    for (size_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
    double total = 0, mass = 0;
    for (const int32_t id : order) total += std::exp(logits[id] / 3.0);
    size_t kept = config.top_k > 0 ? config.top_k : order.size();
    if (config.top_p < 1)
      for (kept = 0; mass < config.top_p * total;) mass += std::exp(logits[order[kept++]] / 3.0);
    size_t last = 0;
    for (int i = 0; i < 2000; ++i)
      last = std::max(last, rank.at(Sampler(config).Sample(logits, i)));
    EXPECT_LT(last, kept);
    EXPECT_GT(last, kept * 9 / 10) << "all kept tokens can be drawn";
  }
}

TEST(Sampler, ThePenaltyAppliesOnceToEachTokenOfTheText) {
  const Sampler sampler({.temperature = 0, .repetition_penalty = 2});
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, -1.0f, 0.0f};
  EXPECT_EQ(sampler.Sample(logits, 0), 1);
  EXPECT_EQ(sampler.Sample(logits, 0, std::vector<int32_t>{1, 1, 1}), 2) << "3 / 2 < 2";
  EXPECT_EQ(sampler.Sample(logits, 0, std::vector<int32_t>{1, 2}), 1) << "3 / 2 > 2 / 2";
  const std::vector<float> negative = {-1.0f, -1.5f};
  EXPECT_EQ(sampler.Sample(negative, 0, std::vector<int32_t>{0}), 1) << "-1 * 2 < -1.5";
}

TEST(Sampler, FrequencyAndPresencePenaltiesCountGeneratedTokens) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f};
  const std::vector<int32_t> text = {1, 1, 1, 1};
  const auto likeliest = [&](SamplerConfig config, size_t num_prompt) {
    config.temperature = 0;
    return Sampler(config).Sample(logits, 0, text, num_prompt);
  };
  EXPECT_EQ(likeliest({.frequency_penalty = 0.4}, 4), 1) << "the prompt does not count";
  EXPECT_EQ(likeliest({.frequency_penalty = 0.4}, 2), 1) << "3 - 2 * 0.4 > 2";
  EXPECT_EQ(likeliest({.frequency_penalty = 0.4}, 1), 2) << "3 - 3 * 0.4 < 2";
  EXPECT_EQ(likeliest({.presence_penalty = 0.9}, 0), 1) << "once, however often it occurs";
  EXPECT_EQ(likeliest({.presence_penalty = 1.1}, 3), 2);
  EXPECT_EQ(likeliest({.frequency_penalty = 0.4, .presence_penalty = 0.3}, 2), 2);
}

TEST(Sampler, RefusesWhatMakesNoSense) {
  EXPECT_HL_ERROR(Sampler({.repetition_penalty = 0}), ExitCode::kUsage, "repetition-penalty is 0");
  EXPECT_HL_ERROR(Sampler({.temperature = -1}), ExitCode::kUsage, "temperature is -1");
  EXPECT_HL_ERROR(Sampler({.top_p = 2}), ExitCode::kUsage, "top-p is 2", "(0, 1]");
  EXPECT_HL_ERROR(Sampler({.top_k = -3}), ExitCode::kUsage, "top-k is -3");
  const std::vector<float> bad = {0, NAN};
  EXPECT_HL_ERROR(Sampler({}).Sample(bad, 4), ExitCode::kNonFinite, "token 1", "position 4");
}

}  // namespace
}  // namespace halflife::infer
