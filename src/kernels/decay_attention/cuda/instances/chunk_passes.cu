// The kernels around the scans of bf16 heads: states of all chunks and segments, and the operands
// and gradients of per-channel decays. All but the states of segments process chunks or tiles
// independently.
#include "kernels/decay_attention/cuda/channel_gradients.cuh"
#include "kernels/decay_attention/cuda/channel_operands.cuh"
#include "kernels/decay_attention/cuda/chunk_states.cuh"
#include "kernels/decay_attention/cuda/segment.cuh"

namespace halflife::kernels::decay {

void LaunchChunkStates(const ReverseScanParams& params, cudaStream_t stream) {
  using Config = ChunkStatesConfig;
  const DecayAttentionArgs& args = params.grads.forward;
  const int64_t factors = MaxStatesInBatchTile(args, params.shape.num_sequences, /*num_parts=*/1);
  if (factors > 0) {
    LaunchShape shape = ShapeForRows(factors, "decay attention factors of chunks");
    shape.smem_bytes = kRowWarps * kDecayTablesBytes;
    Launch(shape, stream, ChunkFactorsKernel, params);
  }
  Launch({2 * NumBlocks(args, StateBlocks(args, params.shape)), Config::kThreads,
          Config::kSmemBytes, "decay attention states of chunks"},
         stream, ChunkStatesKernel, params);
}

template void LaunchChannelOperands<64>(const ChannelOperandsParams&, cudaStream_t);
template void LaunchChannelOperands<128>(const ChannelOperandsParams&, cudaStream_t);
template void LaunchChannelGradients<64>(const ChannelGradientsParams&, cudaStream_t);
template void LaunchChannelGradients<128>(const ChannelGradientsParams&, cudaStream_t);

#define HL_DECAY_INSTANCE(K, V)                                              \
  template void LaunchStateScan<K, V>(const StateScanParams&, cudaStream_t); \
  template void LaunchChannelStateScan<K, V>(const StateScanParams&, cudaStream_t);
#include "kernels/decay_attention/cuda/instances/instances.inc"

}  // namespace halflife::kernels::decay
