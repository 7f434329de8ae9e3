// Forward scans with decays of channels over bf16 heads of up to 64 key channels.
#include "kernels/decay_attention/cuda/channel_scan.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_INSTANCE_64(V) \
  template void LaunchChannelScan<64, V>(const ChunkScanParams& params, cudaStream_t stream);
#include "kernels/decay_attention/cuda/instances/instances.inc"

}  // namespace halflife::kernels::decay
