#include "ops/decay_attention/device_limits.h"

#include <cstdlib>
#include <string_view>

#ifdef HALFLIFE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

namespace halflife::ops {

bool ShouldUseWgmma(int compute_capability_major, bool built_for_sm_90a, const char* setting) {
  constexpr int kHopper = 9;
  const bool wanted = setting == nullptr || std::string_view(setting) != "0";
  return compute_capability_major == kHopper && built_for_sm_90a && wanted;
}

#ifdef HALFLIFE_WITH_CUDA
kernels::DeviceLimits LimitsOfGpu(int index) {
#ifdef HALFLIFE_BUILT_FOR_SM_90A
  constexpr bool kBuilt = true;
#else
  constexpr bool kBuilt = false;
#endif
  static const char* const setting = std::getenv("HALFLIFE_WARPGROUPS");
  const cudaDeviceProp* device =
      at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
  return {.is_cuda = true,
          .num_sms = device->multiProcessorCount,
          .shared_memory_bytes = static_cast<int64_t>(device->sharedMemPerBlockOptin),
          .warpgroups = ShouldUseWgmma(device->major, kBuilt, setting)};
}
#endif

}  // namespace halflife::ops
