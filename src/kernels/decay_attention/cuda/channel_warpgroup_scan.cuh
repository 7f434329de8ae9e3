// The scan of channel_scan.cuh in chunks of 64 tokens, with Hopper's instructions (sm_90a) and the
// operands of channel_chunk_operands.cuh:
//
//   out^T = S^T queries^T + v^T scores^T,   S^T = S^T diag(G) + v^T keys
//
// One or two warpgroups multiply with wgmma; each warp has 16 rows of S^T in its accumulators. One
// more warp loads chunks, three ahead: tiles by TMA, and G. Chunks are handed over by two kinds of
// mbarriers: full (a chunk has arrived) and empty (all reads of it are done). The operands are zero
// past a chunk's end. Of v, TMA also loads the rows that follow the chunk, which can belong to
// another document or contain NaN; they are cleared in registers.
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | 3 x (queries 2 x [C, 64] 16 | keys 2 x [C, 64] 16 | v 2 x [C, 64] 16 | scores [C, C] 8
//   | G 0.5) | stage of out 8 |
#pragma once

#include "kernels/decay_attention/cuda/channel_chunks.h"
#include "kernels/decay_attention/cuda/chunk_scan.cuh"
#include "kernels/decay_attention/cuda/warpgroup_tiles.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kV_>
struct ChannelWarpgroupConfig {
  static constexpr int kK = kK_, kV = kV_;
  static constexpr bool kNormalised = false;
  static constexpr int kStages = kWarpgroupStages;
  static constexpr int kWarps = kV / 16;  // warps that multiply
  // Warps that load. Only one of them issues loads. With two warpgroups that multiply, three idle
  // warps complete a third warpgroup, which gives registers to the other two (setmaxnreg). Nine
  // warps would have 168 registers per thread, with which ptxas serialises the products.
  static constexpr int kLoadWarps = kWarps > 4 ? 4 : 1;
  static constexpr int kThreads = 32 * (kWarps + kLoadWarps);
  static constexpr int kOwnRegisters = 232, kOtherRegisters = 40;  // 168 on average
  static constexpr int kMinBlocksPerSm = WarpgroupScanBlocksPerSm(kK, kV);
  // Bytes of a chunk that TMA loads
  static constexpr int kChunkBytes = 2 * kChunk * (2 * kK + kV + kChunk);
  static constexpr int kSmemBytes = ChannelWarpgroupScanBytes(kK, kV);
};

struct ChannelWarpgroupMaps {
  TensorMap queries, keys, scores;
  RowsMap v;
};

template <typename Config>
struct ChannelWarpgroupShared {
  bf16 *queries, *keys, *v;  // [kStages][kK | kV / 64][64, 64]
  bf16* scores;              // [kStages][64, 64]
  bf16* out;                 // [kWarps][kOutTokens, 16]
  float* transition;         // [kStages][kK]
  uint64_t* full;            // [kStages]: the tiles' bytes and G have arrived
  uint64_t* empty;           // [kStages]: every warp that multiplies has finished reading
};

#if HL_HAS_WGMMA

// Loads the chunks of a segment. Called by one warp.
template <typename Config>
HL_DEVICE void LoadChannelChunks(const ChannelWarpgroupShared<Config>& smem,
                                 const ChunkScanParams& params, const ChannelWarpgroupMaps& maps,
                                 const ChannelChunks& chunks, const BlockIndex& block_index) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const DecayAttentionArgs& args = params.args;
  const int first_chunk = args.sequence_begin[params.shape.first_sequence];
  const int v_head = SharedHead(block_index.head, args.num_v_heads, args.num_heads);
  const int v_column = static_cast<int>(v_head * args.v.stride_h) + block_index.slice * kV;
#pragma unroll 1
  for (int index = block_index.begin; index < block_index.end; ++index) {
    const int step = index - block_index.begin, stage = step % Config::kStages;
    const int round = step / Config::kStages;
    const ChunkEntry chunk = args.chunks[index];
    const int64_t at = ChunkHeadIndex(index, first_chunk, block_index.head, args.num_heads);
    const int column = LaneId() * 4;
    float4 transition = make_float4(0, 0, 0, 0);
    if (column < kK)
      transition = *reinterpret_cast<const float4*>(chunks.transition + at * kK + column);
    if (round > 0) MbarrierWait(smem.empty + stage, static_cast<uint32_t>((round - 1) & 1));
    if (LaneId() == 0) {
      uint64_t* const full = smem.full + stage;
      const int row = static_cast<int>(at * kChunk);
      MbarrierArriveExpectTx(full, Config::kChunkBytes);
      LoadPieces(smem.queries + stage * kChunk * kK, kK, kPieceElements, maps.queries, full, 0,
                 row);
      LoadPieces(smem.keys + stage * kChunk * kK, kK, kPieceElements, maps.keys, full, 0, row);
      LoadPieces(smem.scores + stage * kPieceElements, kChunk, kPieceElements, maps.scores, full, 0,
                 row);
      LoadPieces(smem.v + stage * kChunk * kV, kV, kPieceElements, maps.v.map, full, v_column,
                 MapRow(maps.v, chunk));
    }
    if (column < kK) *reinterpret_cast<float4*>(smem.transition + stage * kK + column) = transition;
    __syncwarp();
    if (LaneId() == 0) MbarrierArrive(smem.full + stage);
  }
}

// Starts out^T = S^T queries^T + v^T scores^T, as one group. `rounded`: S^T.
template <typename Config>
HL_DEVICE void BeginChannelOutput(float (&out)[kChunk / 8][4],
                                  uint32_t (&rounded)[Config::kK / 16][4],
                                  uint32_t (&v)[kChunk / 16][4], const bf16* queries,
                                  const bf16* scores) {
  Clear(out);
  FenceTiles(out);
  FenceOperands(rounded);
  FenceOperands(v);
  WgmmaFence();
  IssueTimesTransposed(out, rounded, queries);
  IssueTimesTransposed(out, v, scores);
  WgmmaCommit();
}
// Starts S^T += v^T keys.
template <typename Config>
HL_DEVICE void BeginChannelState(float (&state)[Config::kK / 8][4],
                                 const uint32_t (&v)[kChunk / 16][4], const bf16* keys) {
  FenceTiles(state);
  WgmmaFence();
  IssueTimes(state, v, keys);
  WgmmaCommit();
}

// The warps that multiply. The state decays while the outputs are multiplied, and outputs are
// stored while the state is.
template <typename Config>
HL_DEVICE void ConsumeChannelChunks(const ChannelWarpgroupShared<Config>& smem,
                                    const ChunkScanParams& params, const BlockIndex& block_index) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const DecayAttentionArgs& args = params.args;
  const StateRows rows = {args.head_dim_k, args.head_dim_v, /*row=*/0,
                          block_index.slice * kV + WarpId() * 16};
  bf16* const stage_out = smem.out + WarpId() * kOutTokens * 16;
  float state[kK / 8][4];
  LoadFirstState(state, params, block_index, rows);
#pragma unroll 1
  for (int index = block_index.begin; index < block_index.end; ++index) {
    const int step = index - block_index.begin, stage = step % Config::kStages;
    const ChunkEntry chunk = args.chunks[index];
    MbarrierWait(smem.full + stage, static_cast<uint32_t>(step / Config::kStages & 1));
    if ((chunk.flags & kChunkResets) != 0) Clear(state);
    SaveCheckpoint<Config, kOutTokens>(state, stage_out, params, block_index, index, rows);
    float out[kChunk / 8][4];
    uint32_t rounded[kK / 16][4], v[kChunk / 16][4];
#pragma unroll
    for (int j = 0; j < kK / 16; ++j) PackFragment(rounded[j], state[2 * j], state[2 * j + 1]);
    LoadOwnValues(v, smem.v + stage * kChunk * kV, chunk.length);
    BeginChannelOutput<Config>(out, rounded, v, smem.queries + stage * kChunk * kK,
                               smem.scores + stage * kPieceElements);
    ScaleAccumulatorColumns(state, smem.transition + stage * kK);
    BeginChannelState<Config>(state, v, smem.keys + stage * kChunk * kK);
    WgmmaWait<1>();
    FenceRegisters(TileOf(out));
    KeepRegisters(rounded);
    const Rows target =
        RowsOf(params.out, chunk, block_index.head, block_index.slice * kV, args.head_dim_v);
    StoreTokens<kOutTokens>(out, stage_out, target, chunk.length, WarpId() * 16);
    WgmmaWait<0>();
    FenceTiles(state);
    KeepRegisters(v);
    __syncwarp();
    if (LaneId() == 0) MbarrierArrive(smem.empty + stage);
  }
  StoreFinalState(state, params, block_index, rows);
}

#endif  // HL_HAS_WGMMA

// Traps on other architectures, as WarpgroupScanKernel does.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChannelWarpgroupScanKernel([[maybe_unused]] HL_GRID_CONSTANT const ChunkScanParams params,
                               [[maybe_unused]] HL_GRID_CONSTANT const ChannelWarpgroupMaps maps,
                               [[maybe_unused]] HL_GRID_CONSTANT const ChannelChunks chunks) {
#if HL_HAS_WGMMA
  HL_DYNAMIC_SMEM(raw);
  HL_SHARED(full, uint64_t[Config::kStages]);
  HL_SHARED(empty, uint64_t[Config::kStages]);
  SmemCarver carver(raw);
  ChannelWarpgroupShared<Config> smem;
  smem.queries = carver.Take<bf16, 1024>(Config::kStages * kChunk * Config::kK);
  smem.keys = carver.Take<bf16, 1024>(Config::kStages * kChunk * Config::kK);
  smem.v = carver.Take<bf16, 1024>(Config::kStages * kChunk * Config::kV);
  smem.scores = carver.Take<bf16, 1024>(Config::kStages * kChunk * kChunk);
  smem.out = carver.Take<bf16>(kOutTokens * Config::kV);
  smem.transition = carver.Take<float>(Config::kStages * Config::kK);
  smem.full = full;
  smem.empty = empty;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      MbarrierInit(full + stage, 2);  // one arrival with the bytes, one with G
      MbarrierInit(empty + stage, Config::kWarps);
    }
    MbarrierInitFence();
  }
  __syncthreads();
  const BlockIndex block_index = MakeBlockIndex(params.args, params.shape, params.checkpoint_every);
  if (FreshWarpId() >= Config::kWarps) {
    if constexpr (Config::kLoadWarps == 4) GiveRegisters<Config::kOtherRegisters>();
    if (FreshWarpId() == Config::kWarps)
      LoadChannelChunks<Config>(smem, params, maps, chunks, block_index);
  } else {
    if constexpr (Config::kLoadWarps == 4) TakeRegisters<Config::kOwnRegisters>();
    ConsumeChannelChunks<Config>(smem, params, block_index);
  }
#else
  __trap();
#endif
}

template <int kK, int kV>
void LaunchChannelWarpgroupScan(const ChunkScanParams& params, cudaStream_t stream) {
  using Config = ChannelWarpgroupConfig<kK, kV>;
  const DecayAttentionArgs& args = params.args;
  const ChannelChunks chunks = ChannelChunksOf(args, params.shape, params.operands);
  const int64_t chunk_heads =
      MaxStatesInBatchTile(args, params.shape.num_sequences, /*num_parts=*/1);
  const ChannelWarpgroupMaps maps = {
      MapOfTiles(chunks.queries, chunk_heads, kChunk, kK, "queries of chunks"),
      MapOfTiles(chunks.keys, chunk_heads, kChunk, kK, "keys of chunks"),
      MapOfTiles(chunks.scores, chunk_heads, kChunk, kChunk, "scores of chunks"),
      MapOfRows(args.v, args, params.shape, args.num_v_heads, args.head_dim_v, "v")};
  Launch({NumBlocks(args, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention scan by warpgroups, decays of channels"},
         stream, ChannelWarpgroupScanKernel<Config>, params, maps, chunks);
}

}  // namespace halflife::kernels::decay
