// The permutation of samples is a bijection that depends on seed and epoch, and never changes.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "data/sample_order.h"

namespace halflife::data {
namespace {

std::vector<uint64_t> Order(uint64_t size, uint64_t seed, uint64_t epoch) {
  std::vector<uint64_t> order;
  for (uint64_t i = 0; i < size; ++i) order.push_back(PermuteIndex(i, size, seed, epoch));
  return order;
}

// From an independent implementation (Python, big integers). If these values change, change
// kOrderVersion, because runs would resume on other samples.
TEST(PermuteTest, GoldenOrder) {
  EXPECT_EQ(kOrderVersion, 1u);
  EXPECT_EQ(Order(12, 0, 0), (std::vector<uint64_t>{6, 3, 0, 9, 11, 10, 1, 5, 4, 7, 2, 8}));
  EXPECT_EQ(Order(12, 0, 1), (std::vector<uint64_t>{7, 10, 6, 4, 1, 0, 3, 2, 5, 8, 9, 11}));
  EXPECT_EQ(Order(12, 7, 0), (std::vector<uint64_t>{2, 6, 9, 11, 0, 10, 4, 8, 3, 7, 5, 1}));
  EXPECT_EQ(PermuteIndex(0, 1000003, 42, 3), 559531u);
  EXPECT_EQ(PermuteIndex(123456789012, uint64_t{1} << 40, 42, uint64_t{1} << 33), 371651541904u);
}

TEST(PermuteTest, IsABijectionOfEverySize) {
  std::vector<uint64_t> sizes(300);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), {1023, 1024, 1025, 4095, 4096, 4097, 65536, 65537, 100003});
  for (const uint64_t size : sizes) {
    for (const uint64_t epoch : {0, 1}) {
      std::vector<bool> seen(size, false);
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t image = PermuteIndex(i, size, 5, epoch);
        ASSERT_LT(image, size);
        ASSERT_FALSE(seen[image]) << "size " << size << ": " << image << " twice";
        seen[image] = true;
      }
    }
  }
}

TEST(PermuteTest, SeedAndEpochChangeTheOrder) {
  std::set<std::vector<uint64_t>> orders;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (const uint64_t epoch : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{1} << 32}) {
      orders.insert(Order(64, seed, epoch));
    }
  }
  EXPECT_EQ(orders.size(), 16u);
}

// Neighbours must be separated. For a uniform permutation of n = 10^4, |p(i+1) - p(i)| has mean n/3
// and standard deviation n/sqrt(18). The mean over 10^4 pairs has a standard error of 0.0024 n, so
// 0.02 n is more than eight of them.
TEST(PermuteTest, SpreadsNeighbours) {
  constexpr uint64_t kSize = 10000;
  const std::vector<uint64_t> order = Order(kSize, 1, 0);
  double sum = 0;
  for (size_t i = 0; i + 1 < kSize; ++i) {
    sum += std::abs(static_cast<double>(order[i + 1]) - static_cast<double>(order[i]));
  }
  EXPECT_NEAR(sum / (kSize - 1) / kSize, 1.0 / 3.0, 0.02);
}

}  // namespace
}  // namespace halflife::data
