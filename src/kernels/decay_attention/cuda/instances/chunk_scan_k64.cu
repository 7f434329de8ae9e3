// Forward walks over bf16 heads of up to 64 key channels.
#include "kernels/decay_attention/cuda/chunk_scan.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_INSTANCE_64(V) template void LaunchWalk<64, V>(const WalkParams&, cudaStream_t);
#include "kernels/decay_attention/cuda/instances/instances.inc"

}  // namespace halflife::kernels::decay
