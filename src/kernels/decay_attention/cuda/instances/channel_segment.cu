// Scans of segments' states with per-channel decays, for all compiled blocks.
#include "kernels/decay_attention/cuda/channel_segment.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_INSTANCE_64(V) \
  template void LaunchChannelStateScan<64, V>(const StateScanParams& params, cudaStream_t stream);
#define HL_DECAY_INSTANCE_128(V) \
  template void LaunchChannelStateScan<128, V>(const StateScanParams& params, cudaStream_t stream);
#include "kernels/decay_attention/cuda/instances/instances.inc"

}  // namespace halflife::kernels::decay
