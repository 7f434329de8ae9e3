// The states of all chunks, for all bf16 head sizes.
#include "kernels/decay_attention/cuda/chunk_states.cuh"

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

}  // namespace halflife::kernels::decay
