// The layout of parameters: order, buckets and slices, checked on random parameter lists.
#include "dist/parameter_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "core/clock.h"
#include "support/expect_error.h"

namespace halflife::dist {
namespace {

std::vector<ParamSpec> RandomSpecs(std::mt19937& random) {
  std::vector<ParamSpec> specs;
  const int num = std::uniform_int_distribution<>(0, 40)(random);
  for (int i = 0; i < num; ++i) {
    std::vector<int64_t> shape;
    const int axes = std::uniform_int_distribution<>(0, 3)(random);
    for (int axis = 0; axis < axes; ++axis) {
      shape.push_back(std::uniform_int_distribution<>(0, 24)(random));  // Sizes include zero.
    }
    specs.push_back({.name = Concat("p", i),
                     .shape = shape,
                     .region = random() % 3 == 0 ? Region::kFp32 : Region::kCompute,
                     .aliases = {}});
  }
  return specs;
}

// Arrays without frozen buckets have every trained element at one place, whole or divided.
TEST(ParameterLayout, FrozenParametersHaveTheirOwnBuckets) {
  for (int seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<ParamSpec> specs = RandomSpecs(random);
    std::erase_if(specs, [](const ParamSpec& spec) { return spec.count() == 0; });
    std::vector<bool> frozen;
    std::vector<int> units;
    for (size_t i = 0; i < specs.size(); ++i) {
      frozen.push_back(random() % 2 == 0);
      units.push_back(static_cast<int>(i / 4));
    }
    const ParameterLayout layout(specs, {.first_bucket_bytes = 1024,
                                         .bucket_bytes = 4096,
                                         .num_slices = 4,
                                         .units = units,
                                         .frozen = frozen});
    int64_t trained = 0;
    for (const Bucket& bucket : layout.buckets()) {
      for (const int param : bucket.params) EXPECT_EQ(frozen[param], bucket.frozen);
      if (bucket.frozen) continue;
      EXPECT_EQ(layout.PlaceOf(bucket.begin, {.trained = true}), trained);
      for (int part = 0; part < 2; ++part) {
        const Division half = {
            .end = layout.num_elements(), .parts = 2, .part = part, .trained = true};
        EXPECT_EQ(layout.PlaceOf(layout.SliceOf(bucket, part, 2).arena_begin, half), trained / 2);
        EXPECT_EQ(layout.num_held(half), layout.num_trained_elements() / 2);
      }
      trained += bucket.end - bucket.begin;
    }
    EXPECT_EQ(layout.num_trained_elements(), trained);
    EXPECT_EQ(layout.num_held({.trained = true}), trained);
  }
}

TEST(ParameterLayout, PropertiesOfRandomLayouts) {
  for (int seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::vector<ParamSpec> specs = RandomSpecs(random);
    const LayoutConfig config = {.first_bucket_bytes = 1024, .bucket_bytes = 16384};
    const ParameterLayout layout(specs, config);
    int64_t end = 0;
    std::vector<int> order;
    for (size_t i = 0; i < layout.buckets().size(); ++i) {
      const Bucket& bucket = layout.buckets()[i];
      EXPECT_EQ(bucket.begin, end) << "buckets leave no gap";
      EXPECT_FALSE(bucket.params.empty());
      end = bucket.end;
      int64_t used = bucket.begin;
      for (const int param : bucket.params) {
        order.push_back(param);
        EXPECT_EQ(specs[param].region, bucket.region);
        EXPECT_EQ(layout.offset(param) % 64, 0);
        EXPECT_GE(layout.offset(param), used) << "tensors do not overlap";
        used = layout.offset(param) + specs[param].count();
      }
      EXPECT_LE(used, bucket.end);
      const int64_t limit = i == 0 ? config.first_bucket_bytes : config.bucket_bytes;
      if (bucket.params.size() > 1) {
        EXPECT_LE((used - bucket.begin) * 4, limit);
      }
      if (bucket.region == Region::kCompute) {
        EXPECT_LE(bucket.end, layout.num_compute_elements());
      } else {
        EXPECT_GE(bucket.begin, layout.num_compute_elements());
      }
    }
    EXPECT_EQ(end, layout.num_elements());

    std::vector<int> expected;  // compute then fp32, each in reverse registration order.
    for (const Region region : {Region::kCompute, Region::kFp32}) {
      for (int param = static_cast<int>(specs.size()) - 1; param >= 0; --param) {
        if (specs[param].region == region) expected.push_back(param);
      }
    }
    EXPECT_EQ(order, expected);
    ASSERT_EQ(layout.AllFragments().size(), specs.size());
    for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(layout.AllFragments()[i].param, order[i]);
  }
}

TEST(ParameterLayout, SlicesCoverEveryElementOnce) {
  for (const int slices : {1, 2, 3, 4, 8}) {
    for (int seed = 0; seed < 40; ++seed) {
      SCOPED_TRACE(testing::Message() << slices << " slices, seed " << seed);
      std::mt19937 random(seed);
      const std::vector<ParamSpec> specs = RandomSpecs(random);
      const ParameterLayout layout(
          specs, {.first_bucket_bytes = 512, .bucket_bytes = 8192, .num_slices = slices});
      std::vector<std::vector<int>> covered;
      for (const ParamSpec& spec : specs) covered.emplace_back(spec.count(), 0);
      for (const Bucket& bucket : layout.buckets()) {
        EXPECT_EQ((bucket.end - bucket.begin) % slices, 0);
        EXPECT_EQ((bucket.end - bucket.begin) / slices % 8, 0);
      }
      for (int slice = 0; slice < slices; ++slice) {
        int64_t last = -1;
        for (const Fragment& fragment : layout.SliceFragments(slice)) {
          EXPECT_LT(fragment.begin, fragment.end);
          EXPECT_EQ(fragment.arena_begin, layout.offset(fragment.param) + fragment.begin);
          EXPECT_GT(fragment.arena_begin, last) << "arena order";
          last = fragment.arena_begin;
          for (int64_t i = fragment.begin; i < fragment.end; ++i) ++covered[fragment.param][i];
          const auto bucket = std::find_if(
              layout.buckets().begin(), layout.buckets().end(),
              [&](const Bucket& candidate) { return fragment.arena_begin < candidate.end; });
          const int64_t length = (bucket->end - bucket->begin) / slices;
          EXPECT_GE(fragment.arena_begin, bucket->begin + slice * length);
          EXPECT_LE(fragment.arena_begin + fragment.end - fragment.begin,
                    bucket->begin + (slice + 1) * length);
        }
      }
      for (const std::vector<int>& counts : covered) {
        EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int n) { return n == 1; }));
      }
    }
  }
}

// Each element is held by one part, at the place that PlaceOf names.
TEST(ParameterLayout, PartsOfADivisionHoldEveryElementOnce) {
  constexpr int kSlices = 8;
  std::mt19937 random(3);
  const ParameterLayout layout(
      RandomSpecs(random),
      {.first_bucket_bytes = 512, .bucket_bytes = 8192, .num_slices = kSlices});
  for (const int parts : {1, 2, 4, 8})
    for (const int64_t end : {int64_t{0}, layout.num_compute_elements(), layout.num_elements()}) {
      std::vector<int> times(layout.num_elements());
      for (int part = 0; part < parts; ++part) {
        const Division division = {.end = end, .parts = parts, .part = part};
        std::vector<bool> used(layout.num_held(division));
        for (const Bucket& bucket : layout.buckets()) {
          const auto held = bucket.end <= end
                                ? layout.SliceOf(bucket, part, parts)
                                : ParameterLayout::SliceRange{.arena_begin = bucket.begin,
                                                              .count = bucket.end - bucket.begin};
          for (int64_t i = held.arena_begin; i < held.arena_begin + held.count; ++i) {
            const int64_t place = layout.PlaceOf(i, division);
            ASSERT_LT(place, std::ssize(used));
            ASSERT_FALSE(used[place]);
            used[place] = true;
            ++times[i];
          }
        }
        EXPECT_EQ(std::ranges::count(used, false), 0);
      }
      for (int64_t i = 0; i < layout.num_elements(); ++i)
        ASSERT_EQ(times[i], i < end ? 1 : parts) << i;
      // A slice that a rank updates has the same place as in an array of slices.
      if (parts != kSlices) continue;
      for (int slice = 0; slice < kSlices; ++slice)
        for (const Fragment& part : layout.SliceFragments(slice))
          EXPECT_EQ(layout.PlaceOf(part.arena_begin, {.end = end, .parts = parts, .part = slice}),
                    layout.PlaceOf(part, end));
    }
}

// Units are whole buckets in reverse order, and parameters of no unit follow them.
TEST(ParameterLayout, BucketsEndWithTheirUnit) {
  std::mt19937 random(5);
  const std::vector<ParamSpec> specs = RandomSpecs(random);
  LayoutConfig config = {.first_bucket_bytes = 512, .bucket_bytes = 8192, .num_slices = 4};
  for (size_t i = 0; i < specs.size(); ++i)
    config.units.push_back(i % 5 == 2 ? -1 : static_cast<int>(i / 4));
  const ParameterLayout layout(specs, config);
  int last = static_cast<int>(specs.size());
  for (const Bucket& bucket : layout.buckets()) {
    if (bucket.region != Region::kCompute) continue;
    const int unit = config.units[bucket.params[0]];
    for (const int param : bucket.params) EXPECT_EQ(config.units[param], unit);
    EXPECT_LE(unit, last) << "reverse order, then those of no unit";
    last = unit;
  }
}

TEST(ParameterLayout, BucketsGrowWithTheRanks) {
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(AutoBucketBytes(8, 400 * kMiB), 64 * kMiB) << "a small model";
  EXPECT_EQ(AutoBucketBytes(8, 5'000 * kMiB), 64 * kMiB);
  EXPECT_EQ(AutoBucketBytes(128, 5'200 * kMiB), 512 * kMiB);
  EXPECT_EQ(AutoBucketBytes(1024, 5'200 * kMiB), 650 * kMiB) << "an eighth of the gradients";
}

TEST(ParameterLayout, ATensorLargerThanABucketHasItsOwn) {
  const ParameterLayout layout({{.name = "small", .shape = {4}, .aliases = {}},
                                {.name = "large", .shape = {100, 100}, .aliases = {}},
                                {.name = "last", .shape = {4}, .aliases = {}}},
                               {.first_bucket_bytes = 1024, .bucket_bytes = 1024});
  ASSERT_EQ(layout.buckets().size(), 3u);
  EXPECT_EQ(layout.buckets()[1].params, std::vector<int>{1});
  EXPECT_EQ(layout.num_parameters(), 10008);
}

TEST(ParameterLayout, TheFirstBucketIsSmall) {
  std::vector<ParamSpec> specs;
  for (int i = 0; i < 64; ++i) {
    specs.push_back({.name = std::to_string(i), .shape = {256}, .aliases = {}});
  }
  const ParameterLayout layout(specs, {.first_bucket_bytes = 4096, .bucket_bytes = 16384});
  EXPECT_EQ(layout.buckets()[0].params.size(), 4u);  // 4 x 256 x 4 bytes.
  EXPECT_EQ(layout.buckets()[1].params.size(), 16u);
}

TEST(ParameterLayout, OffsetsDoNotDependOnSlicesWithinABucket) {
  // Slices only pad the ends of buckets: with 1, 2, 4 or 8 slices, lcm(64, 8 S) is 64, so the arena
  // is the same.
  std::mt19937 random(7);
  const std::vector<ParamSpec> specs = RandomSpecs(random);
  const ParameterLayout one(specs, {.num_slices = 1}), eight(specs, {.num_slices = 8});
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(one.offset(static_cast<int>(i)), eight.offset(static_cast<int>(i)));
  }
}

TEST(ParameterLayout, TakesLinearTime) {
  std::vector<ParamSpec> specs;
  for (int i = 0; i < 200000; ++i) {
    specs.push_back({.name = std::to_string(i), .shape = {64}, .aliases = {}});
  }
  const Stopwatch stopwatch;
  const ParameterLayout layout(specs, {.first_bucket_bytes = 256, .bucket_bytes = 4096});
  int64_t total = 0;
  for (const Fragment& fragment : layout.SliceFragments(0)) total += fragment.end - fragment.begin;
  EXPECT_EQ(total, 200000 * 64);
  // This takes about 0.1 s. A search over the 12,500 buckets for each tensor would take minutes.
  EXPECT_LT(stopwatch.Seconds(), 10);
}

TEST(ParameterLayout, RefusesDuplicateNamesAndBadConfigs) {
  const ParamSpec p = {.name = "w", .shape = {2}, .aliases = {}};
  const ParamSpec tied = {.name = "v", .shape = {2}, .aliases = {"w"}};
  EXPECT_HL_ERROR(ParameterLayout({p, p}, {}), ExitCode::kInternal, "two parameters", "'w'");
  EXPECT_HL_ERROR(ParameterLayout({p, tied}, {}), ExitCode::kInternal, "'w'");
  EXPECT_HL_ERROR(ParameterLayout({p}, {.num_slices = 0}), ExitCode::kInternal, "num_slices 0");
  EXPECT_HL_ERROR(ParameterLayout({p}, {}).SliceFragments(1), ExitCode::kInternal, "slice 1 of 1");
}

}  // namespace
}  // namespace halflife::dist
