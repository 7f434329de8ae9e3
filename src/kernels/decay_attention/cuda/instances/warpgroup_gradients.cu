// The wgmma gradients of all chunks, for all compiled blocks.
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
