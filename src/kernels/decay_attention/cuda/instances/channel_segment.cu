// Scans over the states of segments with decays of channels, for all bf16 head sizes.
#include "kernels/decay_attention/cuda/channel_segment.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_INSTANCE_64(V) \
  template void LaunchChannelStateScan<64, V>(const StateScanParams& params, cudaStream_t stream);
#define HL_DECAY_INSTANCE_128(V) \
  template void LaunchChannelStateScan<128, V>(const StateScanParams& params, cudaStream_t stream);
#include "kernels/decay_attention/cuda/instances/instances.inc"

}  // namespace halflife::kernels::decay
