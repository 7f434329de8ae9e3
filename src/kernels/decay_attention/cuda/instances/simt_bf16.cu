// The recurrent (per-token) kernels for bf16 operands.
#include "kernels/decay_attention/cuda/simt.cuh"

namespace halflife::kernels::decay {

template void LaunchSimtScan<bf16>(const SimtScanParams&, cudaStream_t);
template void LaunchSimtReverseScan<bf16>(const SimtReverseScanParams&, cudaStream_t);
template void LaunchSimtNormGradient<bf16>(const DecayAttentionGradArgs&, float*, cudaStream_t);

}  // namespace halflife::kernels::decay
