// Forward scans with per-channel decays, for bf16 heads in blocks of 64 key channels.
#include "kernels/decay_attention/cuda/channel_scan.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_INSTANCE_64(V) \
  template void LaunchChannelScan<64, V>(const ChunkScanParams& params, cudaStream_t stream);
#include "kernels/decay_attention/cuda/instances/instances.inc"

}  // namespace halflife::kernels::decay
