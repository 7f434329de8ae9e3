// Warpgroup kernels are used only on Hopper, if they are built and not disabled.
#include "ops/decay_attention/decay_attention.h"

#include <gtest/gtest.h>

namespace halflife::kernels {
namespace {

TEST(DeviceLimits, WarpgroupsAreHoppersWhereTheyAreBuiltAndWanted) {
  EXPECT_TRUE(ops::ShouldUseWgmma(9, true, nullptr));
  EXPECT_TRUE(ops::ShouldUseWgmma(9, true, "1"));
  EXPECT_TRUE(ops::ShouldUseWgmma(9, true, ""));
  EXPECT_FALSE(ops::ShouldUseWgmma(9, true, "0"));
  EXPECT_FALSE(ops::ShouldUseWgmma(9, false, nullptr));
  for (const int other : {8, 10, 12})
    EXPECT_FALSE(ops::ShouldUseWgmma(other, true, nullptr)) << other;
}

}  // namespace
}  // namespace halflife::kernels
