// The order statistics, errors and clocks that benchmarks share.
#include "support/measure.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace halflife::bench {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Worse, IsTheLargerAndNanOnEitherSide) {
  EXPECT_EQ(Worse(1, 2), 2);
  EXPECT_EQ(Worse(2, 1), 2);
  EXPECT_TRUE(std::isnan(Worse(1, kNan)));
  EXPECT_TRUE(std::isnan(Worse(kNan, 1)));
}

TEST(RelativeRms, NanOnOneSideIsNan) {
  const at::Tensor want = at::ones({3}, at::kDouble);
  EXPECT_EQ(RelativeRms(at::full({3}, 2.0, at::kFloat), want), 1);
  at::Tensor got = at::ones({3}, at::kFloat);
  got.select(0, 1).fill_(kNan);
  EXPECT_TRUE(std::isnan(RelativeRms(got, want)));
}

TEST(Timer, NoCallOnTheCpuIsLate) {
  Timer timer(at::kCPU);
  timer.StartCounting();
  int calls = 0;
  EXPECT_GE(timer.Milliseconds([&] { ++calls; }), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(timer.late_share(), 0);
}

}  // namespace
}  // namespace halflife::bench
