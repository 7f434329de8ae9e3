// Token by token, bf16 operands.
#include "kernels/decay_attention/cuda/simt.cuh"

namespace halflife::kernels::decay {

template void LaunchSimtWalk<bf16>(const SimtWalkParams&, cudaStream_t);
template void LaunchSimtWalkRev<bf16>(const SimtWalkRevParams&, cudaStream_t);
template void LaunchSimtNormGradient<bf16>(const DecayAttentionGradArgs&, float*, cudaStream_t);

}  // namespace halflife::kernels::decay
