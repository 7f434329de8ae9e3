// States of all chunks, for all bf16 head sizes.
#include "kernels/decay_attention/cuda/chunk_states.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_INSTANCE_64(V) \
  template void LaunchChunkStates<64, V>(const ReverseScanParams& params, cudaStream_t stream);
#define HL_DECAY_INSTANCE_128(V) \
  template void LaunchChunkStates<128, V>(const ReverseScanParams& params, cudaStream_t stream);
#include "kernels/decay_attention/cuda/instances/instances.inc"

}  // namespace halflife::kernels::decay
