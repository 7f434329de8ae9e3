// Initial values depend only on seed, name and element, and have the declared distribution.
#include "model/init.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

std::vector<float> Draw(const Init& init, const std::vector<int64_t>& shape = {200, 500},
                        const std::string& name = "w", uint64_t seed = 1) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float> values(count, 7);
  init.Fill(name, shape, seed, {0, count}, values.data());
  return values;
}

// A rank of ZeRO stage 3 draws only its slices.
TEST(Init, PartsEqualTheWhole) {
  const std::vector<int64_t> shape = {300, 500};
  for (const Init& init :
       {Init::Constant(3), Init::Normal(0.02), Init::TruncatedNormal(0.02, 1), Init::Uniform(-1, 1),
        Init::Range(1, 2), Init::UniformOfFanIn(8),
        Init::Of([](int64_t element, double uniform) { return element + uniform; })}) {
    const std::vector<float> whole = Draw(init, shape);
    for (const Init::Part part : {Init::Part{0, 1}, Init::Part{1, 3}, Init::Part{3, 70'001},
                                  Init::Part{149'998, 150'000}, Init::Part{5, 5}}) {
      std::vector<float> values(part.end - part.begin + 1, 7);
      init.Fill("w", shape, 1, part, values.data());
      EXPECT_EQ(values.back(), 7);
      values.pop_back();
      EXPECT_TRUE(std::equal(values.begin(), values.end(), whole.begin() + part.begin))
          << "elements " << part.begin << " to " << part.end;
    }
  }
}

struct Moments {
  double mean = 0, std_dev = 0, low = 0, high = 0, n = 0;
};
Moments Of(const std::vector<float>& values) {
  double sum = 0, squares = 0;
  for (const double x : values) sum += x, squares += x * x;
  const auto [low, high] = std::ranges::minmax(values);
  const auto n = static_cast<double>(values.size());
  return {sum / n, std::sqrt(squares / n - sum / n * sum / n), low, high, n};
}

TEST(Init, Constants) {
  EXPECT_THAT(Draw(Init::Zeros(), {3}), testing::Each(0.f));
  EXPECT_THAT(Draw(Init::Ones(), {3}), testing::Each(1.f));
  EXPECT_THAT(Draw(Init::Constant(-2.5).Scaled(2), {3}), testing::Each(-5.f));
}

// Tolerances: five standard errors, sigma / sqrt(n) of the mean and sigma / sqrt(2 n) of sigma.
TEST(Init, Normal) {
  const Moments m = Of(Draw(Init::Normal(0.02)));
  EXPECT_NEAR(m.mean, 0, 5 * 0.02 / std::sqrt(m.n));
  EXPECT_NEAR(m.std_dev, 0.02, 5 * 0.02 / std::sqrt(2 * m.n));
}

TEST(Init, TruncatedNormal) {
  const std::vector<float> values = Draw(Init::TruncatedNormal(0.02, 2));
  const Moments m = Of(values);
  EXPECT_LE(std::max(-m.low, m.high), 0.04f);
  // For a normal truncated at 2 sigma: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)) sigma = 0.8796 sigma.
  EXPECT_NEAR(m.std_dev, 0.8796 * 0.02, 5 * 0.02 / std::sqrt(2 * m.n));
  // Elements whose first draw is within the bounds keep the value of the plain normal.
  const std::vector<float> plain = Draw(Init::Normal(0.02));
  int same = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::abs(plain[i]) > 0.04f) continue;
    EXPECT_EQ(values[i], plain[i]);
    ++same;
  }
  EXPECT_GT(same, 0.95 * m.n);
  EXPECT_HL_ERROR(Draw(Init::TruncatedNormal(1, 0.1)), ExitCode::kInternal, "takes too many draws");
}

TEST(Init, Uniform) {
  const Moments m = Of(Draw(Init::Uniform(-1, 3)));
  EXPECT_GE(m.low, -1);
  EXPECT_LE(m.high, 3);
  const double sigma = 4 / std::sqrt(12.0);
  EXPECT_NEAR(m.mean, 1, 5 * sigma / std::sqrt(m.n));
  EXPECT_NEAR(m.std_dev, sigma, 5 * sigma / std::sqrt(2 * m.n));
}

TEST(Init, RangesOverChannels) {
  EXPECT_THAT(Draw(Init::Range(1, 5), {2, 5}), testing::ElementsAre(1, 2, 3, 4, 5, 1, 2, 3, 4, 5));
  EXPECT_THAT(Draw(Init::Range(3, 9), {1}), testing::ElementsAre(3));
}

TEST(Init, FormulasSeeTheElementAndADrawOfItsOwn) {
  EXPECT_THAT(Draw(Init::Of([](int64_t i, double) { return 10.0 - static_cast<double>(i); }), {3}),
              testing::ElementsAre(10.f, 9.f, 8.f));
  const auto draw = [](int64_t, double u) { return 3 + 2 * u; };
  EXPECT_EQ(Draw(Init::Of(draw)), Draw(Init::Uniform(3, 5)));
}

TEST(Init, DependsOnlyOnSeedNameAndElement) {
  for (const Init& init : {Init::Normal(0.02), Init::TruncatedNormal(1), Init::Uniform(0, 1)}) {
    const std::vector<float> values = Draw(init, {10, 7});
    EXPECT_EQ(Draw(init, {10, 7}), values);
    EXPECT_NE(Draw(init, {10, 7}, "w", 2), values);
    EXPECT_NE(Draw(init, {10, 7}, "v"), values);
    const std::vector<float> longer = Draw(init, {11, 7});
    EXPECT_TRUE(std::equal(values.begin(), values.end(), longer.begin()));
  }
}

// Sizes around the pieces of 2^16 elements that threads fill, and an end within a draw of four.
TEST(Init, AnyNumberOfThreadsGivesTheSameBits) {
  const auto formula = [](int64_t i, double u) { return static_cast<double>(i) + u; };
  const int threads_before = at::get_num_threads();
  for (const int64_t count : {1, 5, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 * (1 << 16) + 6}) {
    for (const Init& init : {Init::Constant(3), Init::Normal(0.02), Init::TruncatedNormal(1, 0.6),
                             Init::Uniform(0, 1), Init::Range(1, 9), Init::Of(formula)}) {
      at::set_num_threads(1);
      const std::vector<float> values = Draw(init, {count});
      for (const int threads : {2, 3, 8}) {
        at::set_num_threads(threads);
        EXPECT_EQ(Draw(init, {count}), values) << count << " elements, " << threads << " threads";
      }
    }
  }
  at::set_num_threads(threads_before);
}

// Element i has normal i % 4 of draw i / 4. A truncated normal takes it from the first attempt
// whose value is within the bounds.
TEST(Init, NormalsAreThoseOfTheirDraw) {
  constexpr int64_t kCount = (1 << 16) + 403;
  const std::vector<float> plain = Draw(Init::Normal(1), {kCount}),
                           cut = Draw(Init::TruncatedNormal(1, 0.6), {kCount});
  const RandomKey key = MakeRandomKey(1, RandomPurpose::kInit, NameHash32("w", 1));
  const auto normal = [&](int64_t i, uint32_t attempt) {
    const RandomCounter draw = Draw(key, static_cast<uint64_t>(i / 4), attempt, 0);
    const bool high = i % 4 >= 2;
    const NormalPair pair = ToNormal(draw.x[high ? 2 : 0], draw.x[high ? 3 : 1]);
    return i % 2 == 0 ? pair.a : pair.b;
  };
  for (int64_t i = 0; i < kCount; i += i < 1000 ? 1 : 97) {
    ASSERT_EQ(plain[i], static_cast<float>(normal(i, 0))) << i;
    uint32_t attempt = 0;
    while (std::abs(normal(i, attempt)) > 0.6) ++attempt;
    ASSERT_EQ(cut[i], static_cast<float>(normal(i, attempt))) << i;
  }
}

TEST(Init, ScalingIsAFactor) {
  const std::vector<float> values = Draw(Init::Normal(0.5), {20});
  const std::vector<float> scaled = Draw(Init::Normal(0.5).Scaled(0.5).Scaled(4), {20});
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(scaled[i], 2 * values[i]);
}

}  // namespace
}  // namespace halflife::model
