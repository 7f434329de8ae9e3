// The decode step.
#include "kernels/decay_attention/cuda/step.cuh"

namespace halflife::kernels::decay {

template void LaunchStep<float>(const DecayAttentionStepArgs&, cudaStream_t);
template void LaunchStep<bf16>(const DecayAttentionStepArgs&, cudaStream_t);

}  // namespace halflife::kernels::decay
