// PairwiseSum adds by a fixed tree, so equal runs of 2^n terms can be summed separately.
#include "core/pairwise_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace halflife {
namespace {

double Sum(const std::vector<double>& terms, size_t begin, size_t end) {
  PairwiseSum<double> sum;
  for (size_t i = begin; i < end; ++i) sum.Add(terms[i]);
  return sum.Total();
}

TEST(PairwiseSum, FewTerms) {
  EXPECT_EQ(Sum({}, 0, 0), 0);
  const double big = 1e20;
  EXPECT_EQ(Sum({big, 1, -big, 1}, 0, 4), 0);        // (big + 1) + (-big + 1)
  EXPECT_EQ(Sum({big, -big, 1, 1}, 0, 4), 2);        // (big - big) + (1 + 1)
  EXPECT_EQ(Sum({big, -big, 1, 1, 3}, 0, 5), 5);     // (...) + 3
  EXPECT_EQ(Sum({1, 1, big, 1, -big, 1}, 0, 6), 0);  // ((1 + 1) + (big + 1)) + (-big + 1)
}

TEST(PairwiseSum, EqualPowersOfTwoRunsGiveTheSameBits) {
  std::vector<double> terms;
  for (int i = 0; i < 48; ++i) terms.push_back(std::sin(i + 1) * std::pow(10, i % 11));
  for (const size_t count : {8, 16, 32, 48}) {
    const double whole = Sum(terms, 0, count);
    for (size_t run = 1; run <= 16 && run <= count; run *= 2) {
      PairwiseSum<double> of_runs;
      for (size_t begin = 0; begin < count; begin += run)
        of_runs.Add(Sum(terms, begin, begin + run));
      EXPECT_EQ(of_runs.Total(), whole) << count << " terms in runs of " << run;
    }
  }
}

TEST(PairwiseSum, LevelsAreEnoughForEveryTermButTheLast) {
  for (uint64_t count = 1; count < 70; ++count) {
    int deepest = -1;
    for (uint64_t i = 0; i + 1 < count; ++i) deepest = std::max(deepest, NumCarries(i));
    EXPECT_EQ(NumLevels(count), deepest + 1) << count;
  }
}

}  // namespace
}  // namespace halflife
