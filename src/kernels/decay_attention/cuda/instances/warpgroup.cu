// The wgmma kernels: forward scans of bf16 heads, and the gradients of all chunks.
#include "kernels/decay_attention/cuda/channel_warpgroup_scan.cuh"
#include "kernels/decay_attention/cuda/warpgroup_gradients.cuh"
#include "kernels/decay_attention/cuda/warpgroup_scan.cuh"

namespace halflife::kernels::decay {

template void LaunchWarpgroupScan<64, 64>(const ChunkScanParams&, cudaStream_t);
template void LaunchWarpgroupScan<64, 128>(const ChunkScanParams&, cudaStream_t);
template void LaunchWarpgroupScan<128, 128>(const ChunkScanParams&, cudaStream_t);

#define HL_DECAY_INSTANCE(K, V)                                                         \
  template void LaunchWarpgroupGradients<K, V>(const ReverseScanParams&, cudaStream_t); \
  template void LaunchChannelWarpgroupScan<K, V>(const ChunkScanParams&, cudaStream_t);
#include "kernels/decay_attention/cuda/instances/instances.inc"

}  // namespace halflife::kernels::decay
