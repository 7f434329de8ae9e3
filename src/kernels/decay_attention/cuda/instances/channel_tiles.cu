// The kernels that process tiles independently for per-channel decays: operands and gradients.
#include "kernels/decay_attention/cuda/channel_gradients.cuh"
#include "kernels/decay_attention/cuda/channel_operands.cuh"

namespace halflife::kernels::decay {

template void LaunchChannelOperands<64>(const ChannelOperandsParams& params, cudaStream_t stream);
template void LaunchChannelOperands<128>(const ChannelOperandsParams& params, cudaStream_t stream);
template void LaunchChannelGradients<64>(const ChannelGradientsParams& params, cudaStream_t stream);
template void LaunchChannelGradients<128>(const ChannelGradientsParams& params,
                                          cudaStream_t stream);

}  // namespace halflife::kernels::decay
