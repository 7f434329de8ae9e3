// The recurrent (per-token) kernels and the decode step.
#include "kernels/decay_attention/cuda/simt.cuh"
#include "kernels/decay_attention/cuda/step.cuh"

namespace halflife::kernels::decay {

#define HL_DECAY_PER_TOKEN(T)                                                                   \
  template void LaunchSimtScan<T>(const SimtScanParams&, cudaStream_t);                         \
  template void LaunchSimtReverseScan<T>(const SimtReverseScanParams&, cudaStream_t);           \
  template void LaunchSimtNormGradient<T>(const DecayAttentionGradArgs&, float*, cudaStream_t); \
  template void LaunchStep<T>(const DecayAttentionStepArgs&, cudaStream_t);
HL_DECAY_PER_TOKEN(float)
HL_DECAY_PER_TOKEN(bf16)
#undef HL_DECAY_PER_TOKEN

}  // namespace halflife::kernels::decay
