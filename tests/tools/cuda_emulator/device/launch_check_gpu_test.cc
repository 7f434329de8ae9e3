// A fault on the device. Without launch checks the launch does not report it; with launch checks
// the error names the kernel. Each case runs in a separate process, because the fault destroys the
// CUDA context. The tests skip on a machine without a GPU.
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

// Ends the process with the code of the error that the launch threw, or with kUnseen.
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
