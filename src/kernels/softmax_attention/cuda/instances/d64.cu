// Softmax attention of heads of up to 64 channels.
#include "kernels/softmax_attention/cuda/backward.cuh"
#include "kernels/softmax_attention/cuda/forward.cuh"

namespace halflife::kernels::softmax {

template void LaunchForward<64, 64>(const SoftmaxAttentionArgs&, cudaStream_t);
template void LaunchForward<64, 128>(const SoftmaxAttentionArgs&, cudaStream_t);
template void LaunchBackward<64, 64>(const BackwardParams&, cudaStream_t);
template void LaunchBackward<64, 128>(const BackwardParams&, cudaStream_t);

}  // namespace halflife::kernels::softmax
