// A kernel that fails on the device, after a launch that went well.
#pragma once

namespace halflife::kernels::test {

// On the default stream. The process's CUDA context is lost with it.
void LaunchFailingKernel();

}  // namespace halflife::kernels::test
