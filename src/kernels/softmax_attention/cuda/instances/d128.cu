// Softmax attention of heads of 65 to 128 channels.
#include "kernels/softmax_attention/cuda/backward.cuh"
#include "kernels/softmax_attention/cuda/forward.cuh"

namespace halflife::kernels::softmax {

template void LaunchForward<128, 64>(const SoftmaxAttentionArgs&, cudaStream_t);
template void LaunchForward<128, 128>(const SoftmaxAttentionArgs&, cudaStream_t);
template void LaunchBackward<128, 64>(const BackwardParams&, cudaStream_t);
template void LaunchBackward<128, 128>(const BackwardParams&, cudaStream_t);

}  // namespace halflife::kernels::softmax
