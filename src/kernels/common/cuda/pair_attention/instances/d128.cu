// Kernels on pairs of tiles for heads of 65 to 128 channels.
#include "kernels/common/cuda/pair_attention/backward.cuh"
#include "kernels/common/cuda/pair_attention/forward.cuh"

namespace halflife::kernels::pairs {

template void LaunchForward<128, 64>(const PairAttentionArgs&, cudaStream_t);
template void LaunchForward<128, 128>(const PairAttentionArgs&, cudaStream_t);
template void LaunchBackward<128, 64>(const BackwardParams&, cudaStream_t);
template void LaunchBackward<128, 128>(const BackwardParams&, cudaStream_t);

}  // namespace halflife::kernels::pairs
