// The recurrent (per-token) kernels for fp32 operands.
#include "kernels/decay_attention/cuda/simt.cuh"

namespace halflife::kernels::decay {

template void LaunchSimtScan<float>(const SimtScanParams&, cudaStream_t);
template void LaunchSimtReverseScan<float>(const SimtReverseScanParams&, cudaStream_t);
template void LaunchSimtNormGradient<float>(const DecayAttentionGradArgs&, float*, cudaStream_t);

}  // namespace halflife::kernels::decay
