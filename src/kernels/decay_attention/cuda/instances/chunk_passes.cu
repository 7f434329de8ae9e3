// The kernels around the scans: states of segments, and the operands and gradients of
// per-channel decays. All but the states of segments process chunks or tiles independently.
#include "kernels/decay_attention/cuda/channel_chunk_gradients.cuh"
#include "kernels/decay_attention/cuda/channel_chunk_operands.cuh"
#include "kernels/decay_attention/cuda/channel_gradients.cuh"
#include "kernels/decay_attention/cuda/channel_operands.cuh"
#include "kernels/decay_attention/cuda/segment.cuh"

namespace halflife::kernels::decay {

template void LaunchChannelOperands<64>(const ChannelOperandsParams&, cudaStream_t);
template void LaunchChannelOperands<128>(const ChannelOperandsParams&, cudaStream_t);
template void LaunchChannelChunkOperands<64>(const ChannelOperandsParams&, cudaStream_t);
template void LaunchChannelChunkOperands<128>(const ChannelOperandsParams&, cudaStream_t);
template void LaunchChannelChunkGradients<64>(const ReverseScanParams&, cudaStream_t);
template void LaunchChannelChunkGradients<128>(const ReverseScanParams&, cudaStream_t);
template void LaunchChannelGradients<64>(const ChannelGradientsParams&, cudaStream_t);
template void LaunchChannelGradients<128>(const ChannelGradientsParams&, cudaStream_t);

#define HL_DECAY_INSTANCE(K, V)                                              \
  template void LaunchStateScan<K, V>(const StateScanParams&, cudaStream_t); \
  template void LaunchChannelStateScan<K, V>(const StateScanParams&, cudaStream_t);
#include "kernels/decay_attention/cuda/instances/instances.inc"

template void LaunchChannelOperands<64, 2>(const ChannelOperandsParams&, cudaStream_t);
template void LaunchChannelGradients<64, 2>(const ChannelGradientsParams&, cudaStream_t);
template void LaunchStateScan<64, 64, 2>(const StateScanParams&, cudaStream_t);
template void LaunchChannelStateScan<64, 64, 2>(const StateScanParams&, cudaStream_t);

}  // namespace halflife::kernels::decay
