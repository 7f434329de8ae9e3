// A fault on the device: unseen by the launch that made it, named where launches are checked. Each
// in a process of its own, as it takes the context with it. Skips where there is no GPU.
#include "kernels/common/cuda/launch_check.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "core/error.h"
#include "tools/cuda_emulator/device/failing_kernel.h"

namespace halflife::kernels {
namespace {

constexpr int kUnseen = 3;

// Ends the process: what the launch threw, or kUnseen.
[[noreturn]] void LaunchAndExit(bool checked) {
  CheckLaunches(checked);
  try {
    test::LaunchFailingKernel();
  } catch (const Error& error) {
    std::cerr << error.message() << "\n";
    std::_Exit(static_cast<int>(error.code()));
  }
  std::_Exit(kUnseen);
}

class LaunchCheckGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a CUDA context does not survive a fork
  }
};

TEST_F(LaunchCheckGpuTest, NamesTheKernelThatFailed) {
  EXPECT_EXIT(LaunchAndExit(true), testing::ExitedWithCode(static_cast<int>(ExitCode::kInternal)),
              "a kernel that fails, 2 x 1 x 1 blocks of 32 x 1 x 1 threads: the kernel failed");
}

TEST_F(LaunchCheckGpuTest, UncheckedLaunchesDoNotWait) {
  EXPECT_EXIT(LaunchAndExit(false), testing::ExitedWithCode(kUnseen), "");
}

}  // namespace
}  // namespace halflife::kernels
