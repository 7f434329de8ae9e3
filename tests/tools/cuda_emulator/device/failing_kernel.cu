#include "tools/cuda_emulator/device/failing_kernel.h"

#include "kernels/common/cuda/device.h"

namespace halflife::kernels::test {
namespace {

__global__ void Fail() { __trap(); }

}  // namespace

void LaunchFailingKernel() { Launch({dim3(2), dim3(32), 0, "a kernel that fails"}, nullptr, Fail); }

}  // namespace halflife::kernels::test
