// Reverse scans for bf16 heads in blocks of 64 key channels.
#include "kernels/decay_attention/cuda/reverse_scan.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_INSTANCE_64(V)                                                             \
  template void LaunchReverseScan<64, V>(const ReverseScanParams& params, int shared_limit, \
                                         cudaStream_t);
#include "kernels/decay_attention/cuda/instances/instances.inc"

}  // namespace halflife::kernels::decay
