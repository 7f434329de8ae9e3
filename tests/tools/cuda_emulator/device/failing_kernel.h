// A kernel that is launched without an error and then fails on the device.
#pragma once

namespace halflife::kernels::test {

// Launches the kernel on the default stream. The failure destroys the CUDA context of the process.
void LaunchFailingKernel();

}  // namespace halflife::kernels::test
