// out = scale q S, S = exp(log_decay) S + k^T v. One block scans the chunks of a segment with the
// state in registers. For decays with one factor per token. Tiles are loaded with cp.async and
// multiplied with mma.sync.
//
// The state is kept transposed, S^T [V rows, K columns], 16 rows per warp. Rounded to bf16, two
// adjacent accumulators are an A fragment of out^T = S^T q^T, so this product reads no shared
// memory for S.
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | 2 x (q [C, K] 16 | k [C, K] 16 | v [C, V] 16) | scores [C, C] 8 | stage of out 8
//   | 2 x tables 2.3 | sums of keys 2 | = kSmemBytes
#pragma once

#include "kernels/decay_attention/cuda/key_sums.cuh"
#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

template <int kK_, int kV_, bool kNormalised_, int kTerms_>
struct ChunkScanConfig {
  static constexpr int kK = kK_, kV = kV_, kTerms = kTerms_;
  static constexpr bool kNormalised = kNormalised_;
  static constexpr int kStages = kTerms == 1 ? 2 : 1;  // 1: loads do not overlap
  static constexpr int kWarps = kV / 16, kThreads = 32 * kWarps;
  // Registers allow no more blocks: the state takes kK / 2 per thread.
  static constexpr int kMinBlocksPerSm = ScanBlocksPerSm(kK, kV, kTerms);
  static constexpr int kSmemBytes = ChunkScanBytes(kK, kV, kTerms);
};

template <typename Config>
struct ChunkScanShared {
  bf16 *q, *k, *v;      // [kStages][kTerms][64, kK | kV]
  bf16* scores;         // [kTerms][64, 64]
  bf16* out;            // [kWarps][kOutTokens, 16]; with per-channel decays [kWarps][16, 16]
  DecayTables* tables;  // [2]
};

template <typename Config>
HL_DEVICE void LoadChunk(const ChunkScanShared<Config>& smem, const DecayAttentionArgs& args,
                         const ChunkEntry& chunk, const BlockIndex& block_index, int stage) {
  constexpr int kK = Config::kK, kV = Config::kV, kThreads = Config::kThreads;
  constexpr int kTerms = Config::kTerms, kRows = kTerms * kChunk;
  const int q_head = SharedHead(block_index.head, args.num_q_heads, args.num_heads);
  const int k_head = SharedHead(block_index.head, args.num_k_heads, args.num_heads);
  const int v_head = SharedHead(block_index.head, args.num_v_heads, args.num_heads);
  LoadTerms<kTerms, kK, kThreads>(
      smem.q + stage * kRows * kK,
      RowsOf(args.q, chunk, q_head, block_index.key_slice * kK, args.head_dim_k), chunk.length);
  LoadTerms<kTerms, kK, kThreads>(
      smem.k + stage * kRows * kK,
      RowsOf(args.k, chunk, k_head, block_index.key_slice * kK, args.head_dim_k), chunk.length);
  LoadTerms<kTerms, kV, kThreads>(
      smem.v + stage * kRows * kV,
      RowsOf(args.v, chunk, v_head, block_index.slice * kV, args.head_dim_v), chunk.length);
}

// scores_rs = scale c_s w_rs q_r k_s for s <= r and 0 otherwise, in one tile of 16 x 16. If
// normalised, adds the scores of the lane's two rows to `sums`.
template <typename Config>
HL_DEVICE void ScoreTile(bf16* scores, [[maybe_unused]] float (&sums)[2], const bf16* q,
                         const bf16* k, const DecayTables& tables, float scale, int lane,
                         int row_tile, int column_tile) {
  constexpr int kK = Config::kK;
  const int rows_k = RowsFirst<kK>(lane);
  const int columns_k = ColumnsFirst<kK>(lane);
  float acc[2][4];
  Clear(acc);
#pragma unroll 4
  for (int c = 0; c < kK; c += 16) {
    Fragment<Config::kTerms> a, b;
    LoadFragment<kK, false>(a, q, kChunk * kK, rows_k, 16 * row_tile, c);
    LoadFragment<kK, false>(b, k, kChunk * kK, columns_k, 16 * column_tile, c);
    MmaPair(acc[0], acc[1], a, b);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int s = 16 * column_tile + 8 * n + LaneColumn();
    const float c0 = scale * tables.key_scale[s], c1 = scale * tables.key_scale[s + 1];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = 16 * row_tile + 8 * half + LaneRow();
      const float2 weights = PairWeights(tables, r, s);
      const float x = s <= r ? acc[n][2 * half] * (weights.x * c0) : 0.0f;
      const float y = s + 1 <= r ? acc[n][2 * half + 1] * (weights.y * c1) : 0.0f;
      StorePair<Config::kTerms>(scores + TileOffset<kChunk>(r, s), kChunk * kChunk, x, y);
      if constexpr (Config::kNormalised) {
        const uint32_t pair = PackBf16(x, y);
        sums[half] += Config::kTerms == 1 ? UnpackLo(pair) + UnpackHi(pair) : x + y;
      }
    }
  }
}

// Computes the chunk's tiles of scores up to the diagonal, with all warps; tiles above it are not
// written. `row_sums` [kWarps / 4][64]: row sums by the warps that share rows, for a normalised
// output.
template <typename Config>
HL_DEVICE void IntraTile(bf16* scores, [[maybe_unused]] float* row_sums, const bf16* q,
                         const bf16* k, const DecayTables& tables, float scale) {
  const int lane = FreshLaneId();
  const int row_tile = WarpId() % 4, part = WarpId() / 4;
  float sums[2] = {0, 0};
#pragma unroll 1
  for (int column_tile = part; column_tile <= row_tile; column_tile += Config::kWarps / 4)
    ScoreTile<Config>(scores, sums, q, k, tables, scale, lane, row_tile, column_tile);
  if constexpr (Config::kNormalised) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = RowSum(sums[half]);
      if (lane % 4 == 0) row_sums[part * kChunk + 16 * row_tile + 8 * half + lane / 4] = sum;
    }
  }
}

// out^T = S^T q^T diag(incoming)
template <typename Config>
HL_DEVICE void InterOutput(float (&out)[kChunk / 8][4], const float (&state)[Config::kK / 8][4],
                           const bf16* q, const DecayTables& tables) {
  const int lane = FreshLaneId();
  const int columns_k = ColumnsFirst<Config::kK>(lane);
  Clear(out);
#pragma unroll
  for (int j = 0; j < Config::kK / 16; ++j) {
    Fragment<Config::kTerms> a;
    PackFragment(a, state[2 * j], state[2 * j + 1]);
#pragma unroll
    for (int n = 0; n < kChunk / 16; ++n) {
      Fragment<Config::kTerms> b;
      LoadFragment<Config::kK, false>(b, q, kChunk * Config::kK, columns_k, 16 * n, 16 * j);
      MmaPair(out[2 * n], out[2 * n + 1], a, b);
    }
  }
  ScaleAccumulatorColumns(out, tables.incoming);
}

// out^T += v^T scores^T
template <typename Config>
HL_DEVICE void IntraOutput(float (&out)[kChunk / 8][4], const bf16* v, const bf16* scores) {
  const int lane = FreshLaneId();
  const int columns_v = ColumnsFirst<Config::kV>(lane);
  const int columns_chunk = ColumnsFirst<kChunk>(lane);
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
    Fragment<Config::kTerms> a;
    LoadFragment<Config::kV, true>(a, v, kChunk * Config::kV, columns_v, 16 * j, WarpId() * 16);
#pragma unroll
    for (int n = j; n < kChunk / 16; ++n) {
      Fragment<Config::kTerms> b;
      LoadFragment<kChunk, false>(b, scores, kChunk * kChunk, columns_chunk, 16 * n, 16 * j);
      MmaPair(out[2 * n], out[2 * n + 1], a, b);
    }
  }
}

// Stores the state before a group of chunks, [K, V] bf16, or (kRest) the remainder that this
// rounding loses, through the warp's stage.
template <typename Config, bool kRest, int kRows>
HL_DEVICE void SaveTerm(const float (&state)[Config::kK / 8][4], bf16* stage, bf16* checkpoint,
                        const StateRows& rows) {
#pragma unroll
  for (int part = 0; part < Config::kK / kChunk; ++part) {
    Rows target;
    target.data = reinterpret_cast<char*>(checkpoint + (rows.row + part * kChunk) * rows.columns);
    target.stride_t = rows.columns;
    target.dim = rows.columns;
    target.aligned = rows.columns % 8 == 0 && reinterpret_cast<uintptr_t>(checkpoint) % 16 == 0;
    target.is_wide = false;
    float d[kChunk / 8][4];
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = state[part * (kChunk / 8) + n][i];
        d[n][i] = kRest ? x - ToFloat(ToBf16(x)) : x;
      }
    }
    StoreTransposed<kRows>(d, stage, target, rows.rows - rows.row - part * kChunk, rows.column);
  }
}

// Loads the warp's rows of the state before the block's first chunk: from the scan over segments,
// or the given one. Without either, the state is zero.
template <int kTiles>
HL_DEVICE void LoadFirstState(float (&state)[kTiles][4], const ChunkScanParams& params,
                              const BlockIndex& block_index, const StateRows& rows) {
  const DecayAttentionArgs& args = params.args;
  const int64_t state_elements = int64_t{1} * args.head_dim_k * args.head_dim_v;
  Clear(state);
  if (params.segment_states != nullptr) {
    LoadState<true>(state, params.segment_states + block_index.piece * state_elements, rows);
  } else if (args.initial_state != nullptr) {
    LoadState<true>(
        state, static_cast<const float*>(args.initial_state) + block_index.state * state_elements,
        rows);
  }
}
// Stores the state after a sequence if it ends in this block and is requested.
template <int kTiles>
HL_DEVICE void StoreFinalState(float (&state)[kTiles][4], const ChunkScanParams& params,
                               const BlockIndex& block_index, const StateRows& rows) {
  const DecayAttentionArgs& args = params.args;
  if (args.final_state == nullptr || !block_index.stops) return;
  const int64_t state_elements = int64_t{1} * args.head_dim_k * args.head_dim_v;
  StoreState<true>(
      state, static_cast<float*>(args.final_state) + block_index.state * state_elements, rows);
}

// Stores the state before chunk `index` if a group starts there and the forward keeps checkpoints.
// The warp's stage has kRows tokens.
template <typename Config, int kRows>
HL_DEVICE void SaveCheckpoint(const float (&state)[Config::kK / 8][4], bf16* stage,
                              const ChunkScanParams& params, const BlockIndex& block_index,
                              int index, const StateRows& rows) {
  const DecayAttentionArgs& args = params.args;
  const int every = params.checkpoint_every;
  if (args.checkpoints == nullptr || (index - block_index.first) % every != 0) return;
  const int64_t slot = CheckpointSlot(block_index.sequence, block_index.first, index, every);
  bf16* const checkpoint =
      static_cast<bf16*>(args.checkpoints) +
      (slot * args.num_heads + block_index.head) * (int64_t{1} * args.head_dim_k * args.head_dim_v);
  SaveTerm<Config, false, kRows>(state, stage, checkpoint, rows);
  if (params.splits_checkpoints)
    SaveTerm<Config, true, kRows>(state, stage, checkpoint + CheckpointElements(args, every), rows);
}

// Barriers per chunk: (1) at its start: its tiles and tables are complete, and the other stage, its
// tables and the scores are free; (2) between the scores and their readers; (3) with one stage, at
// its end: the stage is free.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChunkScanKernel(const ChunkScanParams params) {
  constexpr int kK = Config::kK, kV = Config::kV, kTerms = Config::kTerms;
  constexpr int kStages = Config::kStages, kRows = kTerms * kChunk;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  ChunkScanShared<Config> smem;
  smem.q = carver.Take<bf16>(kStages * kRows * kK);
  smem.k = carver.Take<bf16>(kStages * kRows * kK);
  smem.v = carver.Take<bf16>(kStages * kRows * kV);
  smem.scores = carver.Take<bf16>(kRows * kChunk);
  smem.out = carver.Take<bf16>(kOutTokens * kV);
  smem.tables = carver.Take<DecayTables>(2);
  KeySumsShared<Config> key_sums;
  key_sums.state = carver.Take<float>(kK);
  key_sums.parts = carver.Take<float>(3 * kV);

  const DecayAttentionArgs& args = params.args;
  const BlockIndex block_index = MakeBlockIndex(args, params.shape, params.checkpoint_every);
  const StateRows rows = {args.head_dim_k, args.head_dim_v, block_index.key_slice * kK,
                          block_index.slice * kV + WarpId() * 16};
  const KeySumChannels channels = MakeKeySumChannels<kK>(args, block_index);
  bf16* const stage_out = smem.out + WarpId() * kOutTokens * 16;
  const int thread = static_cast<int>(threadIdx.x);

  float state[kK / 8][4];
  LoadFirstState(state, params, block_index, rows);
  if (Config::kNormalised && thread < kK)
    key_sums.state[thread] = FirstKeySum(params.key_sums, args, block_index, channels, thread);
  // Loads a chunk, if it exists, into its stage: one of two, or the only one. A load of two terms
  // is long, so it has one place in the code.
  const auto load = [&](int index) {
    if (index >= block_index.end) return;
    const int stage = kStages == 2 ? (index - block_index.begin) % 2 : 0;
    LoadChunk(smem, args, args.chunks[index], block_index, stage);
    CpAsyncCommit();
  };
  if (kStages == 2) load(block_index.begin);
  if (WarpId() == IdleWarp<Config>() && block_index.begin < block_index.end)
    FillDecayTables(smem.tables[0], args, args.chunks[block_index.begin], block_index.head);
#pragma unroll 1
  for (int index = block_index.begin; index < block_index.end; ++index) {
    const int table = (index - block_index.begin) % 2, stage = kStages == 2 ? table : 0;
    const ChunkEntry chunk = args.chunks[index];
    const bf16* const q = smem.q + stage * kRows * kK;
    const bf16* const k = smem.k + stage * kRows * kK;
    const bf16* const v = smem.v + stage * kRows * kV;
    const DecayTables& tables = smem.tables[table];
    if (kStages == 1) load(index);
    CpAsyncWait<0>();
    __syncthreads();
    if (kStages == 2) load(index + 1);
    const bool resets = (chunk.flags & kChunkResets) != 0;
    if (resets) Clear(state);
    SaveCheckpoint<Config, kOutTokens>(state, stage_out, params, block_index, index, rows);
    if constexpr (Config::kNormalised) {
      if (thread < kK)
        SaveKeySum(params, block_index, channels, index, thread,
                   resets ? 0.0f : key_sums.state[thread]);
      SumQueries(key_sums, q, tables, resets);
    }
    if (WarpId() == IdleWarp<Config>() && index + 1 < block_index.end)
      FillDecayTables(smem.tables[1 - table], args, args.chunks[index + 1], block_index.head);
    IntraTile<Config>(smem.scores, key_sums.parts, q, k, tables, args.scale);
    __syncthreads();
    float out[kChunk / 8][4];
    InterOutput<Config>(out, state, q, tables);
    IntraOutput<Config>(out, v, smem.scores);
    if constexpr (Config::kNormalised) Divide(out, key_sums, params, chunk, block_index, channels);
    const Rows target = RowsOf(SliceOf(params.out, args, block_index.key_slice, args.head_dim_v),
                               chunk, block_index.head, block_index.slice * kV, args.head_dim_v);
    StoreTokens<kOutTokens>(out, stage_out, target, chunk.length, WarpId() * 16);
    Scale(state, tables.transition);
    AccumulateOuter<kTerms, kV, kK>(state, v, k, tables.outgoing_scaled);
    if constexpr (Config::kNormalised) AdvanceKeySums(key_sums, k, tables, resets);
    if (kStages == 1) __syncthreads();
  }
  StoreFinalState(state, params, block_index, rows);
  if constexpr (Config::kNormalised) {
    __syncthreads();
    if (thread < kK)
      StoreFinalKeySum(params.key_sums, args, block_index, channels, thread,
                       key_sums.state[thread]);
  }
}

template <typename Config>
void LaunchChunkScanAs(const ChunkScanParams& params, cudaStream_t stream) {
  Launch({NumBlocks(params.args, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention scan"},
         stream, ChunkScanKernel<Config>, params);
}
template <int kK, int kV, int kTerms>
void LaunchChunkScan(const ChunkScanParams& params, cudaStream_t stream) {
  if (params.key_sums.wanted) {
    LaunchChunkScanAs<ChunkScanConfig<kK, kV, true, kTerms>>(params, stream);
  } else {
    LaunchChunkScanAs<ChunkScanConfig<kK, kV, false, kTerms>>(params, stream);
  }
}

}  // namespace halflife::kernels::decay
