// Gradients of all chunks side by side by Hopper's warpgroups, for all bf16 head sizes.
#include "kernels/decay_attention/cuda/warpgroup_gradients.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_INSTANCE_64(V)                                                  \
  template void LaunchWarpgroupGradients<64, V>(const ReverseScanParams& params, \
                                                cudaStream_t stream);
#define HL_DECAY_INSTANCE_128(V)                                                  \
  template void LaunchWarpgroupGradients<128, V>(const ReverseScanParams& params, \
                                                 cudaStream_t stream);
#include "kernels/decay_attention/cuda/instances/instances.inc"

}  // namespace halflife::kernels::decay
