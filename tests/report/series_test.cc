// Reduction of long curves to buckets that keep extremes, means and counts.
#include "report/axis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/philox.h"

namespace halflife::report {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Series Noise(int count) {
  const RandomKey key = MakeRandomKey(3, RandomPurpose::kTest, 1);
  Series points;
  for (int i = 1; i <= count; ++i) points.push_back({1.0 * i, ToUniform(Draw(key, i, 0, 0).x[0])});
  return points;
}

TEST(Reduce, FewPointsStayAsTheyAre) {
  const Series points = {{1, 5}, {2, kNaN}, {7, 3}};
  const std::vector<Bucket> buckets = Reduce(points, 1, 7, Scale::kLinear, 2);
  ASSERT_EQ(buckets.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(buckets[i].x, points[i].x);
    EXPECT_EQ(buckets[i].num_points, 1);
  }
  EXPECT_EQ(buckets[0].mean, 5);
  EXPECT_TRUE(std::isnan(buckets[1].mean));
  EXPECT_EQ(buckets[1].num_nonfinite, 1);
}

TEST(Reduce, KeepsExtremesMeansAndCounts) {
  Series points = Noise(10007);
  points[5000].y = 40;    // One spike.
  points[7000].y = kNaN;  // One skipped step.
  points[7001].y = HUGE_VAL;
  for (const Scale scale : {Scale::kLinear, Scale::kLog}) {
    const std::vector<Bucket> buckets = Reduce(points, 1, 10007, scale, 100);
    EXPECT_LE(buckets.size(), 101u);
    double weighted = 0, lowest = 1e9, highest = -1e9, x = 0;
    int64_t num_points = 0, num_nonfinite = 0;
    for (const Bucket& bucket : buckets) {
      EXPECT_GT(bucket.x, x);
      x = bucket.x;
      EXPECT_LE(bucket.low, bucket.mean);
      EXPECT_GE(bucket.high, bucket.mean);
      weighted += bucket.mean * static_cast<double>(bucket.num_points - bucket.num_nonfinite);
      lowest = std::min(lowest, bucket.low);
      highest = std::max(highest, bucket.high);
      num_points += bucket.num_points;
      num_nonfinite += bucket.num_nonfinite;
    }
    EXPECT_EQ(num_points, 10007);
    EXPECT_EQ(num_nonfinite, 2);
    EXPECT_EQ(highest, 40);
    EXPECT_EQ(lowest, Lowest(points)->y);
    EXPECT_NEAR(weighted, *Sum(points), 1e-9 * 10007);
  }
}

TEST(Reduce, ABucketOfNothingFiniteIsAGap) {
  Series points = Noise(1000);
  for (int i = 300; i < 400; ++i) points[i].y = kNaN;
  const std::vector<Bucket> buckets = Reduce(points, 1, 1000, Scale::kLinear, 50);
  EXPECT_GT(std::count_if(buckets.begin(), buckets.end(),
                          [](const Bucket& bucket) { return std::isnan(bucket.mean); }),
            3);
}

TEST(Reduce, NothingAndOnePlace) {
  EXPECT_TRUE(Reduce({}, 0, 1, Scale::kLinear, 10).empty());
  EXPECT_EQ(Reduce({{4, 2}}, 4, 4, Scale::kLinear, 10).size(), 1u);
}

TEST(Statistics, LeaveOutWhatIsNotFinite) {
  const Series points = {{0, 3}, {1, kNaN}, {2, 1}, {3, 8}, {4, -HUGE_VAL}};
  EXPECT_EQ(Lowest(points)->y, 1);
  EXPECT_EQ(Lowest(points)->x, 2);
  EXPECT_EQ(*Highest(points), 8);
  EXPECT_EQ(*Median(points), 3);
  EXPECT_EQ(*Median({{0, 3}, {1, 8}}), 5.5);
  EXPECT_EQ(*Sum(points), 12);
  EXPECT_EQ(*MeanOfLast(points, 3), 4.5);
  EXPECT_EQ(*MeanOfLast(points, 100), 4);
  for (const Series& none : {Series{}, Series{{1, kNaN}}}) {
    EXPECT_FALSE(Lowest(none) || Highest(none) || Median(none) || Sum(none) || MeanOfLast(none, 2));
  }
}

}  // namespace
}  // namespace halflife::report
