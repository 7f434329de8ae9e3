// Warpgroup kernels are used only on Hopper, if they are built and not disabled.
#include "ops/decay_attention/decay_attention.h"

#include <gtest/gtest.h>

namespace halflife::ops {
namespace {

TEST(DeviceLimits, WarpgroupsAreHoppersWhereTheyAreBuiltAndWanted) {
  EXPECT_TRUE(ShouldUseWgmma(9, true, nullptr));
  EXPECT_TRUE(ShouldUseWgmma(9, true, "1"));
  EXPECT_TRUE(ShouldUseWgmma(9, true, ""));
  EXPECT_FALSE(ShouldUseWgmma(9, true, "0"));
  EXPECT_FALSE(ShouldUseWgmma(9, false, nullptr));
  for (const int other : {8, 10, 12}) EXPECT_FALSE(ShouldUseWgmma(other, true, nullptr)) << other;
}

}  // namespace
}  // namespace halflife::ops
