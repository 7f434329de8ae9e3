// Checks the warning about the slowest rank.
#include "train/record/run_timing.h"

#include <gtest/gtest.h>

#include "dist/local_communicator.h"

namespace halflife::train {
namespace {

using dist::Communicator;
using dist::LocalWorld;

TEST(RankTimes, NamesTheSlowestRank) {
  LocalWorld::Run(4, [](Communicator& comm) {
    RankTimes times(comm);
    const double own = comm.rank() == 2 ? 0.3 : 0.1 + 0.01 * comm.rank();
    for (int comparison = 1; comparison <= 4; ++comparison) {
      for (int step = 1; step < RankTimes::kEvery; ++step)
        EXPECT_FALSE(times.Add(own)) << "a comparison after " << step << " steps";
      const auto compared = times.Add(own);
      ASSERT_TRUE(compared);
      EXPECT_NEAR(compared->min_s, 0.1, 1e-12);
      EXPECT_NEAR(compared->median_s, 0.11, 1e-12);
      EXPECT_NEAR(compared->max_s, 0.3, 1e-12);
      EXPECT_EQ(compared->slowest, 2);
      EXPECT_EQ(compared->times_in_a_row, comparison);
    }
  });
}

TEST(RankTimes, ARowOfSlowTimesEnds) {
  LocalWorld::Run(2, [](Communicator& comm) {
    RankTimes times(comm);
    const auto compare = [&](double own) {
      for (int step = 1; step < RankTimes::kEvery; ++step) times.Add(own);
      return times.Add(own)->times_in_a_row;
    };
    const double slow = comm.rank() == 1 ? 2 : 1, other = comm.rank() == 0 ? 2 : 1;
    EXPECT_EQ(compare(slow), 1);
    EXPECT_EQ(compare(slow), 2);
    EXPECT_EQ(compare(1), 0) << "no rank is slow";
    EXPECT_EQ(compare(slow), 1);
    EXPECT_EQ(compare(other), 1) << "another rank is";
  });
}

// The slow rank costs 16 x 0.2 s per comparison: more than 10 s after the fourth one, and more than
// 20 s after the seventh one.
TEST(RankTimes, WarnsAboutSecondsAndNotAboutMilliseconds) {
  LocalWorld::Run(2, [](Communicator& comm) {
    RankTimes long_steps(comm), short_steps(comm);
    const auto compare = [&](RankTimes& times, double own) {
      for (int step = 1; step < RankTimes::kEvery; ++step) times.Add(own);
      return *times.Add(own);
    };
    for (int comparison = 1; comparison <= 9; ++comparison) {
      const ComparedTimes long_ones = compare(long_steps, comm.rank() == 1 ? 0.3 : 0.1);
      EXPECT_NEAR(long_ones.waited_s, 3.2 * comparison, 1e-9);
      EXPECT_EQ(long_ones.worth_a_warning, comparison == 4 || comparison == 7) << comparison;
      EXPECT_FALSE(compare(short_steps, comm.rank() == 1 ? 0.003 : 0.001).worth_a_warning);
    }
    EXPECT_EQ(compare(long_steps, 0.1).waited_s, 0) << "no rank is slow";
  });
}

TEST(RankTimes, OneRankComparesNothing) {
  LocalWorld::Run(1, [](Communicator& comm) {
    RankTimes times(comm);
    for (int step = 0; step < 2 * RankTimes::kEvery; ++step) EXPECT_FALSE(times.Add(1));
  });
}

}  // namespace
}  // namespace halflife::train
