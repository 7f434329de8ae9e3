#include "ops/torch/gpu_route.h"

#ifdef HALFLIFE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

#include <mutex>
#include <set>

#include "core/log.h"

namespace halflife::ops {

#ifdef HALFLIFE_WITH_CUDA
int64_t SharedMemoryPerBlock(const at::Tensor& x) {
  return static_cast<int64_t>(
      at::cuda::getDeviceProperties(x.get_device())->sharedMemPerBlockOptin);
}
#endif

void LogRoute(const char* family, const std::string& route) {
  static std::mutex mutex;
  static std::set<std::string> logged;
  const std::string line = std::string(family) + ": " + route;
  const std::lock_guard lock(mutex);
  if (logged.insert(line).second) HL_DEBUG("kernels", line);
}

}  // namespace halflife::ops
