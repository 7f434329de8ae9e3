// The sizes that CUDA kernels of step operations refuse.
#include <gtest/gtest.h>

#include "kernels/rows/focus_heads_args.h"

namespace halflife::kernels {
namespace {

TEST(FocusHeadsKernel, RefusesHeadsThatAreWiderThanAWarp) {
  FocusLeavesShape<float> shape;
  shape.dim = kFocusHeadDim + 1;
  EXPECT_THROW(cuda::FocusLeavesForward(shape, {}, nullptr), std::exception);
}

}  // namespace
}  // namespace halflife::kernels
