// Deadlines of any number of seconds, including infinity, are in the future.
#include "dist/request.h"

#include <gtest/gtest.h>

#include <limits>

namespace halflife::dist {
namespace {

using Clock = std::chrono::steady_clock;

TEST(Deadline, IsTheGivenNumberOfSecondsAway) {
  const Clock::time_point before = Clock::now(), deadline = DeadlineIn(1.5);
  EXPECT_GE(deadline - before, std::chrono::milliseconds(1500));
  EXPECT_LE(deadline - Clock::now(), std::chrono::milliseconds(1500));
}

// Converted to 64-bit nanoseconds, these values would overflow, possibly into the past.
TEST(Deadline, VeryLongTimeoutsDoNotOverflow) {
  for (const double seconds : {1e9, 9.3e9, 1e300, std::numeric_limits<double>::infinity()})
    EXPECT_GT(DeadlineIn(seconds), Clock::now() + std::chrono::hours(24 * 365 * 30)) << seconds;
}

// A rank may be polled for an hour before its deadline is asked for.
TEST(Deadline, TheMessageOfATimeoutCountsThePolledTime) {
  EXPECT_EQ(WaitedSeconds(0.3, Clock::now()), 0.3);
  EXPECT_EQ(WaitedSeconds(180, Clock::now() - std::chrono::seconds(3420)), 3600);
}

}  // namespace
}  // namespace halflife::dist
