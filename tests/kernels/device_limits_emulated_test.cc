// The sizes that CUDA kernels of step operations refuse, and those that fit into a device.
#include <gtest/gtest.h>

#include "kernels/convolution/fft_conv_args.h"
#include "kernels/convolution/sine_filter_args.h"
#include "kernels/rows/focus_heads_args.h"

namespace halflife::kernels {
namespace {

TEST(FocusHeadsKernel, RefusesHeadsThatAreWiderThanAWarp) {
  FocusLeavesShape<float> shape;
  shape.dim = kFocusHeadDim + 1;
  EXPECT_THROW(cuda::FocusLeavesForward(shape, {}, nullptr), std::exception);
}

// Two transforms of 8 bytes per point.
TEST(FftConvFits, UpToEightThousandPointsOnAnyOfTheLargeDevices) {
  EXPECT_TRUE(cuda::FftConvFits(8192, 163 << 10));
  EXPECT_FALSE(cuda::FftConvFits(16384, 227 << 10));
  EXPECT_TRUE(cuda::FftConvFits(4096, 99 << 10));
  EXPECT_FALSE(cuda::FftConvFits(8192, 99 << 10));
}

TEST(SineFilterFits, UpToADevicesSharedMemory) {
  SineFilterArgs args;
  args.num_layers = 3, args.inputs = 3, args.width = 128;
  EXPECT_TRUE(cuda::SineFilterFit(args, 163 << 10));
  EXPECT_FALSE(cuda::SineFilterFit(args, 99 << 10));
  args.width = 64;
  EXPECT_TRUE(cuda::SineFilterFit(args, 99 << 10));
  args.width = 220;
  EXPECT_FALSE(cuda::SineFilterFit(args, 227 << 10));
}

}  // namespace
}  // namespace halflife::kernels
