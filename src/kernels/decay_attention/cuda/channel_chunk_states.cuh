// The states of segments (segment.cuh, step 1) from the operands of chunks of 64 tokens:
// S' = diag(G) S + keys^T v.
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | 2 x (keys [C, K] 16 | v [C, V] 16 | G and log2 of it 1) |
#pragma once

#include "kernels/decay_attention/cuda/channel_chunks.h"
#include "kernels/decay_attention/cuda/channel_tile.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kV_>
struct ChannelChunkStateScanConfig {
  static constexpr int kK = kK_, kV = kV_;
  static constexpr int kWarps = kK / 16, kThreads = 32 * kWarps;
  static constexpr int kMinBlocksPerSm = kV == 64 && kK == 64 ? 3 : 1;
  static constexpr int kSmemBytes = ChannelChunkStateScanBytes(kK, kV);
};

template <typename Config>
struct ChannelChunkStateShared {
  bf16 *keys, *v;      // [2][64, kK | kV]
  float* transitions;  // [2][G [kK], log2 of it [kK]]
};

// Issues the async copies of a chunk's operands into a stage.
template <typename Config>
HL_DEVICE void StageChannelChunk(const ChannelChunkStateShared<Config>& smem,
                                 const DecayAttentionArgs& args, const ChannelChunks& chunks,
                                 const BlockIndex& block_index, int64_t at, const ChunkEntry& chunk,
                                 int stage) {
  constexpr int kK = Config::kK, kV = Config::kV, kThreads = Config::kThreads;
  const TensorView keys = {static_cast<bf16*>(chunks.keys) + at * kChunk * kK, 0, kK, 0,
                           DType::kBF16};
  const int v_head = SharedHead(block_index.head, args.num_v_heads, args.num_heads);
  LoadTile<kK, kThreads>(smem.keys + stage * kChunk * kK, RowsOf(keys, ChunkEntry{}, 0, 0, kK),
                         chunk.length);
  LoadTile<kV, kThreads>(smem.v + stage * kChunk * kV,
                         RowsOf(args.v, chunk, v_head, block_index.slice * kV, args.head_dim_v),
                         chunk.length);
  unsigned char* const transitions =
      reinterpret_cast<unsigned char*>(smem.transitions + stage * 2 * kK);
  CopyUnits<kThreads, 0, kK * 4>(transitions,
                                 reinterpret_cast<const char*>(chunks.transition + at * kK));
  CopyUnits<kThreads, 0, kK * 4>(transitions + kK * 4,
                                 reinterpret_cast<const char*>(chunks.log2_transition + at * kK));
  CpAsyncCommit();
}

// The barrier of a chunk: it is loaded, and the previous chunk's stage is free.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChannelChunkStateScanKernel(const StateScanParams params, const ChannelChunks chunks) {
  constexpr int kK = Config::kK, kV = Config::kV;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  ChannelChunkStateShared<Config> smem;
  smem.keys = carver.Take<bf16>(2 * kChunk * kK);
  smem.v = carver.Take<bf16>(2 * kChunk * kV);
  smem.transitions = carver.Take<float>(2 * 2 * kK);

  const DecayAttentionArgs& args = params.args;
  const BlockIndex block_index = MakeBlockIndex(args, params.shape, params.checkpoint_every);
  const int first_chunk = args.sequence_begin[params.shape.first_sequence];
  const auto stage_next = [&](int index) {
    if (index >= block_index.end) return;
    StageChannelChunk<Config>(smem, args, chunks, block_index,
                              ChunkHeadIndex(index, first_chunk, block_index.head, args.num_heads),
                              args.chunks[index], (index - block_index.begin) % 2);
  };
  float state[kV / 8][4];
  Clear(state);
  const int channel = static_cast<int>(threadIdx.x);  // valid if < kK
  float log2_transition = 0;
  stage_next(block_index.begin);
#pragma unroll 1
  for (int index = block_index.begin; index < block_index.end; ++index) {
    const int stage = (index - block_index.begin) % 2;
    const bool resets = (args.chunks[index].flags & kChunkResets) != 0;
    const float* const transition = smem.transitions + stage * 2 * kK;
    CpAsyncWait<0>();
    __syncthreads();
    stage_next(index + 1);
    if (channel < kK)
      log2_transition =
          ExtendTransition</*kReverse=*/false>(log2_transition, transition[kK + channel], resets);
    if (resets) Clear(state);
    ScaleAccumulatorRows(state, transition + WarpId() * 16);
#pragma unroll 1
    for (int s = 0; s < kChunk; s += kTile)
      AddToState<kK, kV>(state, smem.keys + (stage * kChunk + s) * kK,
                         smem.v + (stage * kChunk + s) * kV);
  }
  StoreState<false>(
      state, params.states + block_index.piece * (int64_t{1} * args.head_dim_k * args.head_dim_v),
      {args.head_dim_k, args.head_dim_v, WarpId() * 16, block_index.slice * kV});
  if (channel < kK && block_index.slice == 0 && params.log_transition != nullptr)
    params.log_transition[block_index.piece * kK + channel] =
        log2_transition * params.transition_unit;
}

template <int kK, int kV>
void LaunchChannelChunkStateScan(const StateScanParams& params, cudaStream_t stream) {
  using Config = ChannelChunkStateScanConfig<kK, kV>;
  Launch({NumBlocks(params.args, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention segments in chunks, decays of channels"},
         stream, ChannelChunkStateScanKernel<Config>, params,
         ChannelChunksOf(params.args, params.shape, params.operands));
}

}  // namespace halflife::kernels::decay
