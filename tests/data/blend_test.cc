// The order of a blend, compared with a simulation that draws one sample after the other.
#include "data/blend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "core/concat.h"
#include "data/sample_order.h"
#include "support/expect_error.h"

namespace halflife::data {
namespace {

Blend MakeBlend(const std::vector<int64_t>& num_windows, uint64_t seed = 5) {
  std::vector<BlendSource> sources;
  for (size_t i = 0; i < num_windows.size(); ++i) {
    const std::string name = Concat("source", i);
    sources.push_back({.name = name, .num_windows = num_windows[i], .seed = BlendSeed(seed, name)});
  }
  return Blend(sources, seed);
}

std::vector<std::vector<double>> SomeWeights() {
  std::vector<std::vector<double>> all = {{1},          {0.7, 0.3}, {1, 1, 1},
                                          {1000, 1, 1}, {1, 0, 2},  {1, 0.000245, 0.5}};
  std::mt19937 random(1);
  for (const int count : {2, 5, 17, 60}) {
    std::vector<double> weights;
    for (int i = 0; i < count; ++i)
      weights.push_back(std::pow(10.0, -1.5 * (random() % 1000) / 1e3));
    all.push_back(weights);
  }
  return all;
}

TEST(Blend, CountsFollowWeights) {
  for (const std::vector<double>& weights : SomeWeights()) {
    const std::vector<uint32_t> counts = BlendCounts(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), kBlendCycle);
    for (size_t i = 0; i < weights.size(); ++i) {
      const double exact = weights[i] / sum * kBlendCycle;
      EXPECT_LE(std::abs(counts[i] - exact), std::max(1.0, 1e-3 * exact)) << i;
      EXPECT_EQ(counts[i] == 0, weights[i] == 0) << i;
    }
  }
}

// Every range of 1,000 rows, and others, at every offset of several cycles.
TEST(Blend, ProportionsHoldToOnePercentInAnyThousandRows) {
  for (const std::vector<double>& weights : SomeWeights()) {
    Blend blend = MakeBlend(std::vector<int64_t>(weights.size(), 77));
    const std::vector<uint32_t> counts = BlendCounts(weights);
    blend.Begin(0, counts);
    constexpr uint64_t kRows = 3 * kBlendCycle + 100;
    std::vector<int> sources;
    for (uint64_t g = 0; g < kRows; ++g) sources.push_back(blend.At(g).source);
    for (const size_t length : {1000, 137, 4096}) {
      std::vector<int64_t> in_range(weights.size(), 0);
      double worst = 0;
      for (size_t g = 0; g < kRows; ++g) {
        ++in_range[static_cast<size_t>(sources[g])];
        if (g >= length) --in_range[static_cast<size_t>(sources[g - length])];
        if (g + 1 < length) continue;
        for (size_t i = 0; i < weights.size(); ++i) {
          const double expected = static_cast<double>(length) * counts[i] / kBlendCycle;
          worst = std::max(worst, std::abs(static_cast<double>(in_range[i]) - expected));
        }
      }
      EXPECT_LT(worst, 10) << weights.size() << " sources, ranges of " << length;
    }
  }
}

// The simulation counts the samples of each source. Segments begin within blocks and cycles.
TEST(Blend, EqualsASimulationOverSegments) {
  Blend blend = MakeBlend({50, 7, 1000});
  const std::map<uint64_t, std::vector<double>> weights = {
      {0, {0.5, 0.5, 0}}, {1001, {0.2, 0.3, 0.5}}, {1008, {0, 0.1, 0.9}}, {9000, {1, 1, 1}}};
  std::vector<uint64_t> drawn(3, 0);
  for (uint64_t g = 0; g < 20000; ++g) {
    if (const auto begins = weights.find(g); begins != weights.end())
      blend.Begin(g, BlendCounts(begins->second));
    if (g % 97 == 0) {
      EXPECT_EQ(blend.Drawn(g), drawn) << g;
    }
    const Blend::Row row = blend.At(g);
    const BlendSource& source = blend.sources()[static_cast<size_t>(row.source)];
    const auto windows = static_cast<uint64_t>(source.num_windows);
    const uint64_t number = drawn[static_cast<size_t>(row.source)]++;
    ASSERT_EQ(row.number, number) << g;
    EXPECT_EQ(static_cast<uint64_t>(row.window),
              PermuteIndex(number % windows, windows, source.seed, number / windows));
    if (g > 1008 && g < 9000) {
      EXPECT_NE(row.source, 0) << g << ": its weight is 0";
    }
  }
}

TEST(Blend, EachSourceDrawsEachWindowOnceAnEpoch) {
  Blend blend = MakeBlend({50, 333});
  const double weights[] = {1, 2};
  blend.Begin(0, BlendCounts(weights));
  std::map<std::pair<int, uint64_t>, std::multiset<int64_t>> windows;  // By source and epoch.
  for (uint64_t g = 0; g < 3000; ++g) {
    const Blend::Row row = blend.At(g);
    const auto of_source =
        static_cast<uint64_t>(blend.sources()[static_cast<size_t>(row.source)].num_windows);
    windows[{row.source, row.number / of_source}].insert(row.window);
  }
  for (const auto& [key, seen] : windows) {
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), seen.size())
        << "source " << key.first << ", epoch " << key.second;
  }
  EXPECT_GE(windows.size(), 20u);
}

// A program that knows only the stored segments continues with the same rows. A source is added.
TEST(Blend, StoredSegmentsContinueExactly) {
  Blend first = MakeBlend({50, 70});
  const double weights[] = {3, 1}, later[] = {1, 1, 2};
  first.Begin(0, BlendCounts(weights));
  Blend resumed = MakeBlend({50, 70, 90});
  for (const BlendSegment& segment : first.segments()) resumed.Restore(segment);
  for (uint64_t g = 0; g < 6000; ++g) {
    const Blend::Row a = first.At(g), b = resumed.At(g);
    ASSERT_TRUE(a.source == b.source && a.window == b.window) << g;
  }
  resumed.Begin(6000, BlendCounts(later));
  const std::vector<uint64_t> before = first.Drawn(6000);
  EXPECT_EQ(resumed.segments().back().base, (std::vector<uint64_t>{before[0], before[1], 0}));
  const auto num_segments = resumed.segments().size();
  resumed.Begin(7000, BlendCounts(later));
  EXPECT_EQ(resumed.segments().size(), num_segments) << "equal weights continue the segment";
}

// The orders of two seeds, and of two cycles, are as different as chance makes them.
TEST(Blend, TheOrderDependsOnTheSeed) {
  const double weights[] = {1, 1};
  Blend a = MakeBlend({500, 500}, 1), b = MakeBlend({500, 500}, 2);
  a.Begin(0, BlendCounts(weights));
  b.Begin(0, BlendCounts(weights));
  int same_seeds = 0, same_cycles = 0;
  for (uint64_t g = 0; g < kBlendCycle; ++g) {
    same_seeds += a.At(g).source == b.At(g).source;
    same_cycles += a.At(g).source == a.At(g + kBlendCycle).source;
  }
  // 4096 coins: 2048 +- 5 standard deviations of 32.
  EXPECT_NEAR(same_seeds, 2048, 160);
  EXPECT_NEAR(same_cycles, 2048, 160);
}

}  // namespace
}  // namespace halflife::data
