// The wgmma forward scans for bf16 heads.
#include "kernels/decay_attention/cuda/warpgroup_scan.cuh"

namespace halflife::kernels::decay {

template void LaunchWarpgroupScan<64>(const ChunkScanParams&, cudaStream_t);
template void LaunchWarpgroupScan<128>(const ChunkScanParams&, cudaStream_t);

}  // namespace halflife::kernels::decay
