// out = scale q S, S = diag(exp(log_decay)) S + k^T v with per-channel decays. One block scans the
// tiles of a segment with the state in registers, as in chunk_scan.cuh. The operands are prepared
// beforehand (channel_operands.cuh), so each tile only needs
//   out = (q P) S + scores v,   S = G S + (k Q)^T v
// A warp owns 16 columns of V and exchanges nothing with other warps: the one barrier per tile
// releases stages.
//
// Shared memory in KiB, K = V = 128:
//   | 4 x (q P [16, K] 4 | k Q 4 | v [16, V] 4 | scores 0.75 | G 0.5) | stage of out 4
//   | sums of keys 1.1 |
#pragma once

#include "kernels/decay_attention/cuda/channel_tile.cuh"
#include "kernels/decay_attention/cuda/chunk_scan.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kV_, bool kNormalised_, int kTerms_>
struct ChannelConfig {
  static constexpr int kK = kK_, kV = kV_, kTerms = kTerms_;
  static constexpr bool kNormalised = kNormalised_;
  using T = typename Unsplit<kTerms>::Type;  // of v
  static constexpr int kWarps = kV / 16, kThreads = 32 * kWarps;
  static_assert(kThreads >= kK, "a channel has a thread");
  static constexpr int kMinBlocksPerSm = ChannelScanBlocksPerSm(kV);
  static constexpr int kSmemBytes = ChannelScanBytes(kK, kV, kTerms);
};

template <typename Config>
struct ChannelShared {
  unsigned char* operands;  // [kTileStages][OperandOffsets::kStage]
  typename Config::T* v;    // [kTileStages][16, kV]
  StagedTile* tiles;        // [kTileStages]
  bf16* out;                // [kWarps][16, 16]
  float* key_sums;          // [kK]: z before the tile
  float* query_sums;        // [16]: (q P) z
};

// The addresses of a block's tiles in global memory.
struct ChannelSources {
  TilesOfHead tiles;
  Rows v;
};
// Issues the async copies for the next tile and advances the cursor.
template <typename Config>
HL_DEVICE void StageTile(const ChannelShared<Config>& smem, const ChunkScanParams& params,
                         const ChannelSources& from, TileScan& next, int stage) {
  constexpr int kK = Config::kK, kV = Config::kV, kThreads = Config::kThreads;
  const StagedTile staged = next.staged();
  if (threadIdx.x == 0) smem.tiles[stage] = staged;
  if (!staged.valid) return;
  CopyUnits<kThreads, 0, OperandOffsets<kK, Config::kTerms>::kStage>(
      smem.operands + stage * OperandOffsets<kK, Config::kTerms>::kStage,
      static_cast<const char*>(params.operands) +
          from.tiles.Index(staged.chunk, staged.row) * OperandOffsets<kK, Config::kTerms>::kBytes);
  LoadTile<kV, kThreads, kTile>(smem.v + stage * kTile * kV,
                                RowsAt(from.v, params.args.v, staged.tile), staged.tile.length);
  next.Advance();
}

// Stores z before the tile for the tile's queries, and advances it by the tile, one channel per
// thread. k: c k Q of the tile.
template <typename Config>
HL_DEVICE void AdvanceKeySum(float* before, float& key_sum, const bf16* k,
                             const float* transition) {
  const int c = static_cast<int>(threadIdx.x);
  if (c >= Config::kK) return;
  float keys = 0;
#pragma unroll
  for (int r = kTile - 1; r >= 0; --r)
    keys += LoadElement<Config::kTerms>(k + TileOffset<Config::kK>(r, c), kTile * Config::kK);
  before[c] = key_sum;
  key_sum = fmaf(transition[c], key_sum, keys);
}

// (q P) z. The threads that share a token take its channels in pairs, round robin.
template <typename Config>
HL_DEVICE void SumTileQueries(float* sums, const bf16* q, const float* key_sums) {
  constexpr int kK = Config::kK, kGroups = Config::kThreads / kTile;
  const int r = static_cast<int>(threadIdx.x) / kGroups;
  const int group = static_cast<int>(threadIdx.x) % kGroups;
  float sum = 0;
#pragma unroll
  for (int c = 2 * group; c < kK; c += 2 * kGroups) {
    const bf16* const pair = q + TileOffset<kK>(r, c);
    const float2 keys = *reinterpret_cast<const float2*>(key_sums + c);
    sum = fmaf(LoadElement<Config::kTerms>(pair + 1, kTile * kK), keys.y,
               fmaf(LoadElement<Config::kTerms>(pair, kTile * kK), keys.x, sum));
  }
#pragma unroll
  for (int offset = 1; offset < kGroups; offset *= 2)
    sum += __shfl_xor_sync(kFullWarp, sum, offset);
  if (group == 0) sums[r] = sum;
}

// out^T of the tile's tokens; `values`: their fragment of v^T. Two chains of products hide latency.
template <typename Config>
HL_DEVICE void TileOutput(float (&out)[2][4], Fragment<Config::kTerms>& values,
                          const StagedOperands& operands, const typename Config::T* v,
                          const float (&state)[Config::kK / 8][4]) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const int lane = FreshLaneId();
  const int columns_k = ColumnsFirst<kK>(lane);
  Clear(out);
  float other[2][4];
  Clear(other);
#pragma unroll
  for (int j = 0; j < kK / 16; ++j) {
    Fragment<Config::kTerms> a, b;
    PackFragment(a, state[2 * j], state[2 * j + 1]);
    LoadFragment<kK, false>(b, operands.q, kTile * kK, columns_k, 0, 16 * j);
    if (j % 2 == 0) {
      MmaPair(out[0], out[1], a, b);
    } else {
      MmaPair(other[0], other[1], a, b);
    }
  }
  Fragment<Config::kTerms> b;
  LoadFragment<kV, true, /*kColumnsFirst=*/true>(values, v, lane, 0, WarpId() * 16);
  ScoresFragment<false>(b, operands.scores);
  MmaPair(out[0], out[1], values, b);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] += other[n][i];
  }
}

// out^T / (d + eps), if a block has all of K. Two lanes per token, each with half of its scores.
template <typename Config>
HL_DEVICE void DivideTile(float (&out)[2][4], const bf16* tile_scores, const float* query_sums,
                          const ChunkScanParams& params, const ChunkEntry& tile,
                          const BlockIndex& block_index, const KeySumChannels& at) {
  const int lane = FreshLaneId();
  const int r = lane / 2;
  float scores[8], sum = 0;
  LoadUnit<Config::kTerms>(scores, tile_scores + r * kScorePitch + lane % 2 * 8,
                           kTile * kScorePitch);
#pragma unroll
  for (int s = 0; s < 8; ++s) sum += scores[s];
  sum += __shfl_xor_sync(kFullWarp, sum, 1);
  const float divisor = sum + query_sums[r] + params.key_sums.eps;
  if (WarpId() == 0 && lane % 2 == 0) KeepDivisor(params, tile, block_index, at, r, divisor);
  const float factor = params.key_sums.divides ? 1.0f / divisor : 1.0f;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int column = 8 * n + lane % 4 * 2;
    const float f0 = __shfl_sync(kFullWarp, factor, 2 * column);
    const float f1 = __shfl_sync(kFullWarp, factor, 2 * column + 2);
    out[n][0] *= f0;
    out[n][1] *= f1;
    out[n][2] *= f0;
    out[n][3] *= f1;
  }
}

// Stores the tile's tokens through the warp's stage [16, 16].
HL_DEVICE void StoreTile(const float (&out)[2][4], bf16* stage, const Rows& target, int length) {
  const int lane = FreshLaneId();
  if (target.is_wide) {
    StoreTransposedWide<kTile>(out, stage, target, length, WarpId() * 16);
    return;
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 pair = TransposePair(out[n][2 * half], out[n][2 * half + 1]);
      const int row = 8 * n + lane % 4 * 2 + lane / 4 % 2;
      *reinterpret_cast<uint32_t*>(stage + row * 16 + lane / 8 * 2 + half * 8) =
          PackBf16(pair.x, pair.y);
    }
  }
  FlushTransposed<kTile>(stage, target, length, WarpId() * 16);
}

// Advances the state by the tile.
template <typename Config>
HL_DEVICE void TileState(float (&state)[Config::kK / 8][4], const Fragment<Config::kTerms>& values,
                         const bf16* k, const float* transition) {
  constexpr int kK = Config::kK;
  const int rows_k = RowsFirst<kK>(FreshLaneId());
  ScaleAccumulatorColumns(state, transition);
#pragma unroll
  for (int n = 0; n < kK / 16; ++n) {
    Fragment<Config::kTerms> b;
    LoadFragment<kK, true>(b, k, kTile * kK, rows_k, 0, 16 * n);
    AddToState(state[2 * n], state[2 * n + 1], values, b);
  }
}

template <typename Config>
HL_DEVICE ChannelShared<Config> CarveChannelScan(unsigned char* raw) {
  constexpr int kK = Config::kK, kV = Config::kV;
  SmemCarver carver(raw);
  ChannelShared<Config> smem = {};
  smem.operands =
      carver.Take<unsigned char>(kTileStages * OperandOffsets<kK, Config::kTerms>::kStage);
  smem.v = carver.Take<typename Config::T>(kTileStages * kTile * kV);
  smem.tiles = carver.Take<StagedTile>(kTileStages);
  smem.out = carver.Take<bf16>(kTile * kV);
  smem.key_sums = carver.Take<float>(kK);
  smem.query_sums = carver.Take<float>(kTile);
  return smem;
}

// Barriers: (1) a tile is loaded and the previous tile's stage is free. With a normalised output
// also: (2) z before the tile is complete, (3) the sums of its queries are complete.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChannelScanKernel(const ChunkScanParams params) {
  constexpr int kK = Config::kK, kV = Config::kV;
  HL_DYNAMIC_SMEM(raw);
  const ChannelShared<Config> smem = CarveChannelScan<Config>(raw);
  const DecayAttentionArgs& args = params.args;
  const BlockIndex block_index = MakeBlockIndex(args, params.shape, params.checkpoint_every);
  const StateRows rows = {args.head_dim_k, args.head_dim_v, block_index.key_slice * kK,
                          block_index.slice * kV + WarpId() * 16};
  const KeySumChannels channels = MakeKeySumChannels<kK>(args, block_index);
  bf16* const stage_out = smem.out + WarpId() * kTile * 16;
  const int thread = static_cast<int>(threadIdx.x);

  float state[kK / 8][4];
  LoadFirstState(state, params, block_index, rows);
  float key_sum = 0;  // for the thread's channel
  if (Config::kNormalised && thread < kK)
    key_sum = FirstKeySum(params.key_sums, args, block_index, channels, thread);
  const int v_head = SharedHead(block_index.head, args.num_v_heads, args.num_heads);
  const ChannelSources from = {TilesOfHeadOf(args, params.shape, block_index),
                               HeadRows(args.v, v_head, block_index.slice * kV, args.head_dim_v)};
  const Rows out_rows = HeadRows(SliceOf(params.out, args, block_index.key_slice, args.head_dim_v),
                                 block_index.head, block_index.slice * kV, args.head_dim_v);
  TileScan next = {args.chunks, block_index.begin, block_index.end, /*reverse=*/false};
  next.Start();
  const auto stage_next = [&](int stage) { StageTile(smem, params, from, next, stage); };
  VisitStaged(smem.tiles, stage_next, [&](const StagedTile& at, int stage) {
    if ((at.tile.flags & kChunkResets) != 0) {
      Clear(state);
      key_sum = 0;
    }
    if (at.row == 0) {
      SaveCheckpoint<Config, kTile>(state, stage_out, params, block_index, at.chunk, rows);
      if (Config::kNormalised && thread < kK)
        SaveKeySum(params, block_index, channels, at.chunk, thread, key_sum);
    }
    const StagedOperands operands = OperandsOf<kK, Config::kTerms>(smem.operands, stage);
    if constexpr (Config::kNormalised) {
      AdvanceKeySum<Config>(smem.key_sums, key_sum, operands.k, operands.transition);
      __syncthreads();
      SumTileQueries<Config>(smem.query_sums, operands.q, smem.key_sums);
    }
    float out[2][4];
    Fragment<Config::kTerms> values;
    TileOutput<Config>(out, values, operands, smem.v + stage * kTile * kV, state);
    if constexpr (Config::kNormalised) {
      __syncthreads();
      DivideTile<Config>(out, operands.scores, smem.query_sums, params, at.tile, block_index,
                         channels);
    }
    StoreTile(out, stage_out, RowsAt(out_rows, params.out, at.tile), at.tile.length);
    TileState<Config>(state, values, operands.k, operands.transition);
  });
  StoreFinalState(state, params, block_index, rows);
  if (Config::kNormalised && thread < kK)
    StoreFinalKeySum(params.key_sums, args, block_index, channels, thread, key_sum);
}

template <typename Config>
void LaunchChannelScanAs(const ChunkScanParams& params, cudaStream_t stream) {
  Launch({NumBlocks(params.args, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention scan, decays of channels"},
         stream, ChannelScanKernel<Config>, params);
}
template <int kK, int kV, int kTerms>
void LaunchChannelScan(const ChunkScanParams& params, cudaStream_t stream) {
  if (params.key_sums.wanted) {
    LaunchChannelScanAs<ChannelConfig<kK, kV, true, kTerms>>(params, stream);
  } else {
    LaunchChannelScanAs<ChannelConfig<kK, kV, false, kTerms>>(params, stream);
  }
}

}  // namespace halflife::kernels::decay
