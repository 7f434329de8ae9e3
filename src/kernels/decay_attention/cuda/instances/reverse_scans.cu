// The reverse scans for all compiled blocks.
#include "kernels/decay_attention/cuda/channel_reverse_scan.cuh"
#include "kernels/decay_attention/cuda/reverse_scan.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_INSTANCE(K, V)                                                                    \
  template void LaunchReverseScan<K, V>(const ReverseScanParams&, int shared_limit, cudaStream_t); \
  template void LaunchChannelReverseScan<K, V>(const ReverseScanParams&, cudaStream_t);
#include "kernels/decay_attention/cuda/instances/instances.inc"

template void LaunchReverseScan<64, 64, 2>(const ReverseScanParams&, int, cudaStream_t);
template void LaunchChannelReverseScan<64, 64, 2>(const ReverseScanParams&, cudaStream_t);

}  // namespace halflife::kernels::decay
