// Sampling follows temperature, top-k and top-p, and depends only on seed and position.
#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
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

TEST(Sampler, RefusesWhatMakesNoSense) {
  EXPECT_HL_ERROR(Sampler({.temperature = -1}), ExitCode::kUsage, "temperature is -1");
  EXPECT_HL_ERROR(Sampler({.top_p = 2}), ExitCode::kUsage, "top-p is 2", "(0, 1]");
  EXPECT_HL_ERROR(Sampler({.top_k = -3}), ExitCode::kUsage, "top-k is -3");
  const std::vector<float> bad = {0, NAN};
  EXPECT_HL_ERROR(Sampler({}).Sample(bad, 4), ExitCode::kNonFinite, "token 1", "position 4");
}

}  // namespace
}  // namespace halflife::infer
