// The forward scans for all compiled blocks.
#include "kernels/decay_attention/cuda/channel_scan.cuh"
#include "kernels/decay_attention/cuda/chunk_scan.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_INSTANCE(K, V)                                              \
  template void LaunchChunkScan<K, V>(const ChunkScanParams&, cudaStream_t); \
  template void LaunchChannelScan<K, V>(const ChunkScanParams&, cudaStream_t);
#include "kernels/decay_attention/cuda/instances/instances.inc"

template void LaunchChunkScan<64, 64, 2>(const ChunkScanParams&, cudaStream_t);
template void LaunchChannelScan<64, 64, 2>(const ChunkScanParams&, cudaStream_t);

}  // namespace halflife::kernels::decay
