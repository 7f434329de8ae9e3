#include "ops/torch/block_memory.h"

#ifdef HALFLIFE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>

namespace halflife::ops {

int64_t SharedMemoryPerBlock(const at::Tensor& x) {
  return static_cast<int64_t>(
      at::cuda::getDeviceProperties(x.get_device())->sharedMemPerBlockOptin);
}

}  // namespace halflife::ops
#endif
