// FindNan returns the index of the first NaN, or the count.
#include "ckpt/nan_search.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace halflife::ckpt {
namespace {

using Limits = std::numeric_limits<float>;

TEST(FindNan, ReturnsTheCountWhereAllAreNumbers) {
  const std::vector<float> values = {
      0, -0.0f, Limits::infinity(), -Limits::infinity(), Limits::max(), Limits::denorm_min()};
  EXPECT_EQ(FindNan(values.data(), 6), 6);
  EXPECT_EQ(FindNan(values.data(), 0), 0);
}

TEST(FindNan, FindsTheFirstWhereverItIs) {
  std::vector<float> values(2500, 1.0f);  // Whole strides of the search and a part of one.
  values.back() = Limits::quiet_NaN();
  for (int64_t at = 0; at < std::ssize(values); ++at) {
    values[at] = at % 2 == 0 ? Limits::quiet_NaN() : -Limits::signaling_NaN();
    EXPECT_EQ(FindNan(values.data(), std::ssize(values)), at);
    if (at + 1 < std::ssize(values)) values[at] = 1.0f;
  }
}

}  // namespace
}  // namespace halflife::ckpt
