// Axes of plots: number formats, ticks and ranges.
#include "report/axis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace halflife::report {
namespace {

std::string Labels(const std::vector<Tick>& ticks) {
  std::string labels;
  for (const Tick& tick : ticks) {
    if (!tick.label.empty()) labels += (labels.empty() ? "" : " ") + tick.label;
  }
  return labels;
}

TEST(ShortNumber, ReadsAsPeopleWriteIt) {
  EXPECT_EQ(ShortNumber(0), "0");
  EXPECT_EQ(ShortNumber(3e-4), "3e-4");
  EXPECT_EQ(ShortNumber(2.5e-12), "2.5e-12");
  EXPECT_EQ(ShortNumber(0.001), "0.001");
  EXPECT_EQ(ShortNumber(0.0012347), "0.001235");
  EXPECT_EQ(ShortNumber(0.5), "0.5");
  EXPECT_EQ(ShortNumber(2.71828), "2.718");
  EXPECT_EQ(ShortNumber(271.828), "271.8");
  EXPECT_EQ(ShortNumber(1500), "1500");
  EXPECT_EQ(ShortNumber(16804), "16.8k");
  EXPECT_EQ(ShortNumber(1.5e6), "1.5M");
  EXPECT_EQ(ShortNumber(-2e9), "-2B");
  EXPECT_EQ(ShortNumber(std::nan("")), "not finite");
}

TEST(LinearTicks, AreRoundAndLabelledAlike) {
  EXPECT_EQ(Labels(LinearTicks(0, 600, 6)), "0 100 200 300 400 500 600");
  EXPECT_EQ(Labels(LinearTicks(1.03, 5.59, 5)), "2 3 4 5");
  EXPECT_EQ(Labels(LinearTicks(1.1, 1.3, 4)), "1.10 1.15 1.20 1.25 1.30");
  EXPECT_EQ(Labels(LinearTicks(0, 100000, 5)), "0 20k 40k 60k 80k 100k");
  EXPECT_EQ(Labels(LinearTicks(0, 2.5e6, 5)), "0 0.5M 1.0M 1.5M 2.0M 2.5M");
  EXPECT_EQ(Labels(LinearTicks(0, 3e-4, 3)), "0 1e-4 2e-4 3e-4");
  EXPECT_EQ(Labels(LinearTicks(0, 2.2e-4, 4)), "0 1e-4 2e-4");
  EXPECT_EQ(Labels(LinearTicks(0, 1.2e-4, 3)), "0 5e-5 1.0e-4");
  EXPECT_EQ(Labels(LinearTicks(-1, 1, 4)), "-1.0 -0.5 0 0.5 1.0");
}

TEST(LogTicks, AreDecadesOrOneTwoFive) {
  EXPECT_EQ(Labels(LogTicks(1, 1e6, 6)), "1 10 100 1000 10k 100k 1M");
  EXPECT_EQ(Labels(LogTicks(0.3, 7, 5)), "0.5 1 2 5");
  EXPECT_EQ(Labels(LogTicks(1e-4, 0.1, 5)), "1e-4 0.001 0.01 0.1");
  EXPECT_EQ(Labels(LogTicks(3.1, 3.4, 4)), "3.1 3.2 3.3 3.4");
}

// For any range there are ticks, which are inside it, ascending and have distinct labels.
TEST(Ticks, HoldForAnyRange) {
  for (int exponent = -12; exponent <= 13; ++exponent) {
    for (const double low : {0.1, 1.0, 2.7, 9.99}) {
      for (const double width : {1.0003, 1.07, 1.9, 6.0, 55.0, 4e3, 3e8}) {
        const double begin = low * std::pow(10, exponent), end = begin * width;
        for (const Scale scale : {Scale::kLinear, Scale::kLog}) {
          SCOPED_TRACE(testing::Message()
                       << begin << " to " << end << (scale == Scale::kLog ? " log" : ""));
          const std::vector<Tick> ticks = Axis(begin, end, scale, 0, 100).Ticks(5);
          std::set<std::string> names;
          double last = 0;
          for (const Tick& tick : ticks) {
            EXPECT_GT(tick.value, last);
            last = tick.value;
            EXPECT_GE(tick.value, begin * (1 - 1e-6));
            EXPECT_LE(tick.value, end * (1 + 1e-6));
            if (!tick.label.empty()) {
              EXPECT_TRUE(names.insert(tick.label).second) << tick.label;
            }
          }
          EXPECT_GE(names.size(), 2u);
          EXPECT_LE(names.size(), 12u);
        }
      }
    }
  }
}

TEST(Axis, MapsEndsToEndsAndWidensAnEmptyRange) {
  const Axis linear(2, 6, Scale::kLinear, 100, 0);
  EXPECT_EQ(linear.Pixel(2), 100);
  EXPECT_EQ(linear.Pixel(3), 75);
  const Axis log(1, 100, Scale::kLog, 0, 100);
  EXPECT_DOUBLE_EQ(log.Pixel(10), 50);
  for (const double only : {5.0, 0.0, -3.0}) {
    const Axis flat(only, only, Scale::kLinear, 0, 100);
    EXPECT_DOUBLE_EQ(flat.Pixel(only), 50);
  }
}

}  // namespace
}  // namespace halflife::report
