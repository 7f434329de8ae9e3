// When kernel launches are checked synchronously.
#include "kernels/common/cuda/launch_check.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace halflife::kernels {
namespace {

TEST(LaunchCheck, AnyWordButZeroAsksForIt) {
  for (const char* const word : {"1", "yes", "00"}) EXPECT_TRUE(AsksForLaunchChecks(word)) << word;
  EXPECT_FALSE(AsksForLaunchChecks(nullptr));
  EXPECT_FALSE(AsksForLaunchChecks(""));
  EXPECT_FALSE(AsksForLaunchChecks("0"));
}

TEST(LaunchCheck, FollowsTheEnvironmentUnlessOverridden) {
  EXPECT_EQ(LaunchesAreChecked(), AsksForLaunchChecks(std::getenv("HALFLIFE_CHECK_LAUNCHES")));
  for (const bool on : {true, false}) {
    CheckLaunches(on);
    EXPECT_EQ(LaunchesAreChecked(), on);
  }
}

}  // namespace
}  // namespace halflife::kernels
