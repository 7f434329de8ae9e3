// The forward scans of bf16 heads, for all compiled blocks.
#include "kernels/decay_attention/cuda/channel_scan.cuh"
#include "kernels/decay_attention/cuda/chunk_scan.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_INSTANCE(K, V)                                              \
  template void LaunchChunkScan<K, V>(const ChunkScanParams&, cudaStream_t); \
  template void LaunchChannelScan<K, V>(const ChunkScanParams&, cudaStream_t);
#include "kernels/decay_attention/cuda/instances/instances.inc"

}  // namespace halflife::kernels::decay
