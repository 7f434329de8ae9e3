// Token by token, f32 operands.
#include "kernels/decay_attention/cuda/simt.cuh"

namespace halflife::kernels::decay {

template void LaunchSimtWalk<float>(const SimtWalkParams&, cudaStream_t);
template void LaunchSimtWalkRev<float>(const SimtWalkRevParams&, cudaStream_t);
template void LaunchSimtNormGradient<float>(const DecayAttentionGradArgs&, float*, cudaStream_t);

}  // namespace halflife::kernels::decay
