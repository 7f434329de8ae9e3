// Each kernel is allowed more shared memory once per device.
#include "kernels/common/cuda/shared_bytes.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace halflife::kernels {
namespace {

TEST(SharedBytesLimits, RaisesOncePerKernelAndDevice) {
  SharedBytesLimits limits;
  const int first = 0, second = 0;
  int raised = 0;
  const auto ensure = [&](const void* kernel, int device, int bytes) {
    const int before = raised;
    limits.Ensure(kernel, device, bytes, [&] { ++raised; });
    return raised > before;
  };
  EXPECT_TRUE(ensure(&first, 0, 1000));
  EXPECT_FALSE(ensure(&first, 0, 1000));
  EXPECT_FALSE(ensure(&first, 0, 900));  // covered by the larger limit
  EXPECT_TRUE(ensure(&first, 0, 1001));
  EXPECT_TRUE(ensure(&second, 0, 1000));
  EXPECT_TRUE(ensure(&first, 1, 1000));
  EXPECT_FALSE(ensure(&first, 0, 1001));
}

TEST(SharedBytesLimits, AFailureIsNotRemembered) {
  SharedBytesLimits limits;
  const int kernel = 0;
  EXPECT_THROW(limits.Ensure(&kernel, 0, 1000, [] { throw std::runtime_error("no memory"); }),
               std::runtime_error);
  bool raised = false;
  limits.Ensure(&kernel, 0, 1000, [&] { raised = true; });
  EXPECT_TRUE(raised);
}

}  // namespace
}  // namespace halflife::kernels
