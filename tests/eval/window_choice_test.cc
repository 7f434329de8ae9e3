// The choice of scored windows: the requested number, spread over the split, and the same every
// time.
#include "eval/validation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace halflife::eval {
namespace {

TEST(ChooseWindows, AllIfSoManyAreAskedFor) {
  std::vector<int64_t> all(100);
  std::iota(all.begin(), all.end(), 0);
  for (const int64_t asked : {0, 100, 101, 100000}) EXPECT_EQ(ChooseWindows(asked, 100), all);
  EXPECT_TRUE(ChooseWindows(3, 0).empty());
}

TEST(ChooseWindows, AscendingDistinctAndInEveryQuarter) {
  for (const int64_t available : {50, 1000, 1000003}) {
    const std::vector<int64_t> windows = ChooseWindows(40, available);
    ASSERT_EQ(windows.size(), 40u);
    EXPECT_TRUE(std::ranges::is_sorted(windows, std::less_equal<>{})) << "distinct";
    EXPECT_GE(windows.front(), 0);
    EXPECT_LT(windows.back(), available);
    for (int64_t quarter = 0; quarter < 4; ++quarter) {
      const auto inside = [&](int64_t window) { return window * 4 / available == quarter; };
      EXPECT_GE(std::ranges::count_if(windows, inside), 3) << available << ", " << quarter;
    }
  }
}

TEST(ChooseWindows, MoreWindowsIncludeTheFewer) {
  for (int64_t count = 1; count < 64; ++count) {
    const std::vector<int64_t> fewer = ChooseWindows(count, 64),
                               more = ChooseWindows(count + 1, 64);
    EXPECT_TRUE(std::ranges::includes(more, fewer)) << count;
  }
}

// Another choice would make validation losses of two versions of the program incomparable.
TEST(ChooseWindows, TheChoiceIsFixed) {
  EXPECT_EQ(ChooseWindows(5, 1000), (std::vector<int64_t>{100, 370, 536, 562, 953}));
}

TEST(DescribeChoice, SaysHowMuchOfTheSplit) {
  EXPECT_EQ(DescribeChoice(16, 1024), "scored 16 of 1024 windows, 1.6 % of the split");
  EXPECT_EQ(DescribeChoice(1, 20000), "scored 1 of 20000 windows, 0.005 % of the split");
  EXPECT_EQ(DescribeChoice(12, 12), "scored all 12 windows");
}

}  // namespace
}  // namespace halflife::eval
