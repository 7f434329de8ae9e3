// Gradients of decay attention with one decay factor per token. One block scans the chunks of a
// segment in reverse, with R = dL/d(state) in registers. Tiles are loaded with cp.async and
// multiplied with mma.sync.
//
// The gradient of a decay needs S and R of a chunk together. The chunks between two checkpoints, a
// group, are therefore scanned twice: forward from the checkpoint, storing the state before each
// chunk in a scratch buffer that stays in the L2 cache, then in reverse. Both S and R are kept as
// [K rows, V columns], 16 rows per warp; S is stored in the scratch as A fragments.
//
//   scores_rs = scale c_s w_rs q_r k_s,  dscores_rs = scale c_s w_rs dout_r v_s   (s <= r)
//   dq = incoming S dout + dscores k,    dk = c outgoing R v + dscores^T q,
//   dv = scores^T dout + c outgoing k R
//   dg_t = sum_{r >= t} (h_r + x_r) + sum_{s < t} y_s + through:
//       no term is a difference of sums over tokens outside the chunk
//     h_r: row sum minus column sum of scores dout v below the diagonal
//     x_r = q_r (incoming S dout)_r
//     y_s = k_s (outgoing R v)_s
//     through = transition sum(S R)
//
// Shared memory in KiB, K = V = 128, C = 64, with one stage (two stages are used if they fit):
//   | q 16 | k 16 | v 16 | dout 16 | R [K, V] 32 | scores 8 | dscores 8 | stage of outputs 16
//   | 2 x tables 2.3 | sums 5.8 |
#pragma once

#include "kernels/decay_attention/cuda/reverse.cuh"

namespace halflife::kernels::decay {

template <int kWarps>
struct GradSums {
  float row[kWarps / 4]
           [kChunk];        // of scores dout v below the diagonal, by the warps that share rows
  float column[4][kChunk];  // the same without c, by tiles of 16 rows
  float diagonal[kChunk];   // the pairs (s, s), without c
  float x[kWarps][kChunk];  // by the channels of each warp
  float y[kWarps][kChunk];  // without c
  float through[kWarps];
  float dlambda;  // sum over the chunks so far
  float padding[7];
};
static_assert(sizeof(GradSums<8>) == GradSumsBytes(8));

template <int kK_, int kV_, int kStages_, int kTerms_>
struct ReverseScanConfig {
  static constexpr int kK = kK_, kV = kV_, kStages = kStages_, kTerms = kTerms_;
  static constexpr int kWarps = kK / 16, kThreads = 32 * kWarps;
  static constexpr int kMinBlocksPerSm = ReverseScanBlocksPerSm(kK);
  static constexpr int kSmemBytes = ReverseScanBytes(kK, kV, kStages, kTerms);
};

template <typename Config>
struct ReverseScanShared {
  bf16 *q, *k, *v, *dout;  // [kStages][kTerms][64, kK | kV]
  bf16* adjoint;           // R [kTerms][kK, kV]
  bf16 *scores, *dscores;  // [kTerms][64, 64]
  bf16* out;               // [kWarps][64, 16]
  DecayTables* tables;     // [2]
  GradSums<Config::kWarps>* sums;
  BlockIndex* block_index;
};

// Chunks in the order in which their tiles are needed. Groups come last to first; for each group,
// all chunks except the last one forward (k and v), then all chunks in reverse (also q and dout).
struct GroupOrder {
  int begin, end, every;

  HL_DEVICE int num_groups() const { return (end - begin + every - 1) / every; }
  HL_DEVICE int group_begin(int group) const { return begin + group * every; }
  HL_DEVICE int group_size(int group) const { return min(every, end - group_begin(group)); }
  HL_DEVICE int num_items() const {
    const int groups = num_groups();
    return groups == 0 ? 0 : 2 * (end - begin) - groups;
  }
  HL_DEVICE int ChunkOf(int item, bool& sweeps) const {
    int group = num_groups() - 1;
    const int last_items = 2 * group_size(group) - 1, items = 2 * every - 1;
    if (item >= last_items) {
      item -= last_items;
      group -= 1 + item / items;
      item %= items;
    }
    const int size = group_size(group);
    sweeps = item >= size - 1;
    return group_begin(group) + (sweeps ? 2 * (size - 1) - item : item);
  }
};

template <typename Config>
HL_DEVICE void LoadChunkRev(const ReverseScanShared<Config>& smem,
                            const DecayAttentionGradArgs& grads, const ChunkEntry& chunk,
                            const BlockIndex& block_index, int stage, bool sweeps) {
  constexpr int kK = Config::kK, kV = Config::kV, kThreads = Config::kThreads;
  constexpr int kTerms = Config::kTerms, kRows = kTerms * kChunk;
  const DecayAttentionArgs& args = grads.forward;
  const int k_head = SharedHead(block_index.head, args.num_k_heads, args.num_heads);
  const int v_head = SharedHead(block_index.head, args.num_v_heads, args.num_heads);
  const int channel = block_index.key_slice * kK, column = block_index.slice * kV;
  LoadTerms<kTerms, kK, kThreads>(smem.k + stage * kRows * kK,
                                  RowsOf(args.k, chunk, k_head, channel, args.head_dim_k),
                                  chunk.length);
  LoadTerms<kTerms, kV, kThreads>(smem.v + stage * kRows * kV,
                                  RowsOf(args.v, chunk, v_head, column, args.head_dim_v),
                                  chunk.length);
  if (!sweeps) return;
  const int q_head = SharedHead(block_index.head, args.num_q_heads, args.num_heads);
  LoadTerms<kTerms, kK, kThreads>(smem.q + stage * kRows * kK,
                                  RowsOf(args.q, chunk, q_head, channel, args.head_dim_k),
                                  chunk.length);
  LoadTerms<kTerms, kV, kThreads>(
      smem.dout + stage * kRows * kV,
      RowsOf(grads.dout, chunk, block_index.head, column, args.head_dim_v), chunk.length);
}

// Computes scores and dscores and, if requested, the sums of their products below the diagonal.
// Tiles above the diagonal are not written.
template <typename Config>
HL_DEVICE void PairTiles(const ReverseScanShared<Config>& smem, const bf16* q, const bf16* k,
                         const bf16* v, const bf16* dout, const DecayTables& tables,
                         bool wants_sums) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const int lane = FreshLaneId();
  const int rows_k = RowsFirst<kK>(lane);
  const int columns_k = ColumnsFirst<kK>(lane);
  const int rows_v = RowsFirst<kV>(lane);
  const int columns_v = ColumnsFirst<kV>(lane);
  const int row_tile = WarpId() % 4, part = WarpId() / 4;
  float row_sums[2] = {0, 0};
#pragma unroll 1
  for (int column_tile = part; column_tile <= row_tile; column_tile += Config::kWarps / 4) {
    float scores[2][4], dscores[2][4];
    Clear(scores);
    Clear(dscores);
#pragma unroll 2
    for (int c = 0; c < kK; c += 16) {
      Fragment<Config::kTerms> a, b;
      LoadFragment<kK, false>(a, q, kChunk * kK, rows_k, 16 * row_tile, c);
      LoadFragment<kK, false>(b, k, kChunk * kK, columns_k, 16 * column_tile, c);
      MmaPair(scores[0], scores[1], a, b);
    }
#pragma unroll 2
    for (int c = 0; c < kV; c += 16) {
      Fragment<Config::kTerms> a, b;
      LoadFragment<kV, false>(a, dout, kChunk * kV, rows_v, 16 * row_tile, c);
      LoadFragment<kV, false>(b, v, kChunk * kV, columns_v, 16 * column_tile, c);
      MmaPair(dscores[0], dscores[1], a, b);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int s = 16 * column_tile + 8 * n + lane % 4 * 2;
      const float c0 = tables.key_scale[s], c1 = tables.key_scale[s + 1];
      float column_sums[2] = {0, 0};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = 16 * row_tile + 8 * half + lane / 4;
        const float2 weights = PairWeights(tables, r, s);
        const float scale = tables.query_scale[r];
        const float w0 = weights.x * scale, w1 = weights.y * scale;
        const float x = s <= r ? scores[n][2 * half] * w0 : 0.0f;
        const float y = s + 1 <= r ? scores[n][2 * half + 1] * w1 : 0.0f;
        const float dx = s <= r ? dscores[n][2 * half] : 0.0f;
        const float dy = s + 1 <= r ? dscores[n][2 * half + 1] : 0.0f;
        const int offset = TileOffset<kChunk>(r, s);
        StorePair<Config::kTerms>(smem.scores + offset, kChunk * kChunk, x * c0, y * c1);
        StorePair<Config::kTerms>(smem.dscores + offset, kChunk * kChunk, dx * w0 * c0,
                                  dy * w1 * c1);
        if (!wants_sums) continue;
        if (s == r) smem.sums->diagonal[r] = x * dx;
        if (s + 1 == r) smem.sums->diagonal[r] = y * dy;
        const float below0 = s < r ? x * dx : 0.0f, below1 = s + 1 < r ? y * dy : 0.0f;
        column_sums[0] += below0;
        column_sums[1] += below1;
        row_sums[half] += below0 * c0 + below1 * c1;
      }
      if (!wants_sums) continue;
      const float sum0 = ColumnSum(column_sums[0]), sum1 = ColumnSum(column_sums[1]);
      if (lane / 4 == 0) {
        smem.sums->column[row_tile][s] = sum0;
        smem.sums->column[row_tile][s + 1] = sum1;
      }
    }
  }
  if (!wants_sums) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = RowSum(row_sums[half]);
    if (lane % 4 * 2 == 0) smem.sums->row[part][16 * row_tile + 8 * half + lane / 4] = sum;
  }
}

// sums[n] = sum over the warp's channels of acc[., n] x[n, .]; x is a tile [64, kK].
template <typename Config>
HL_DEVICE void ChannelSums(float* sums, const float (&acc)[kChunk / 8][4], const bf16* x) {
  const int lane = FreshLaneId();
  const int columns_k = ColumnsFirst<Config::kK>(lane);
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
    Fragment<Config::kTerms> a;
    LoadFragment<Config::kK, true>(a, x, kChunk * Config::kK, columns_k, 16 * j, WarpId() * 16);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float(&d)[4] = acc[2 * j + n];
      const float2 top = FragmentPair(a, 2 * n), bottom = FragmentPair(a, 2 * n + 1);
      const float sum0 = ColumnSum(d[0] * top.x + d[2] * bottom.x);
      const float sum1 = ColumnSum(d[1] * top.y + d[3] * bottom.y);
      if (lane / 4 == 0) {
        sums[16 * j + 8 * n + lane % 4 * 2] = sum0;
        sums[16 * j + 8 * n + lane % 4 * 2 + 1] = sum1;
      }
    }
  }
}

// Stores dq or dk for the block's channels.
template <typename Config>
HL_DEVICE void StoreGradient(const float (&d)[kChunk / 8][4], bf16* stage, const TensorView& view,
                             const DecayAttentionArgs& args, const ChunkEntry& chunk,
                             const BlockIndex& block_index) {
  const int dim = args.head_dim_k;
  const Rows rows = RowsOf(SliceOf(view, args, block_index.slice, dim), chunk, block_index.head,
                           block_index.key_slice * Config::kK, dim);
  StoreTokens<kChunk>(d, stage, rows, chunk.length, WarpId() * 16);
}

// dq^T = S dout^T diag(incoming) + k^T dscores^T; if requested, also x and the sum of S R.
template <typename Config>
HL_DEVICE void GradQ(const ReverseScanShared<Config>& smem, float (&acc)[kChunk / 8][4],
                     const uint4* state, const float (&adjoint)[Config::kV / 8][4], const bf16* q,
                     const bf16* k, const bf16* dout, const DecayTables& tables, bool wants_sums) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const int lane = FreshLaneId();
  const int columns_v = ColumnsFirst<kV>(lane);
  const int columns_k = ColumnsFirst<kK>(lane);
  const int columns_chunk = ColumnsFirst<kChunk>(lane);
  Clear(acc);
  float through[1] = {0};
#pragma unroll
  for (int j = 0; j < kV / 16; ++j) {
    Fragment<Config::kTerms> a;
    LoadFragmentOfState(a, state, j);
    if (wants_sums) AddStateProducts(through, a, adjoint, j);
#pragma unroll
    for (int n = 0; n < kChunk / 16; ++n) {
      Fragment<Config::kTerms> b;
      LoadFragment<kV, false>(b, dout, kChunk * kV, columns_v, 16 * n, 16 * j);
      MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
    }
  }
  ScaleAccumulatorColumns(acc, tables.incoming);
  if (wants_sums) {
    const float sum = WarpSum(through[0]);
    if (lane == 0) smem.sums->through[WarpId()] = sum;
    ChannelSums<Config>(smem.sums->x[WarpId()], acc, q);
  }
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
    Fragment<Config::kTerms> a;
    LoadFragment<kK, true>(a, k, kChunk * kK, columns_k, 16 * j, WarpId() * 16);
#pragma unroll
    for (int n = j; n < kChunk / 16; ++n) {
      Fragment<Config::kTerms> b;
      LoadFragment<kChunk, false>(b, smem.dscores, kChunk * kChunk, columns_chunk, 16 * n, 16 * j);
      MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
    }
  }
}

// dk^T = R v^T diag(c outgoing) + q^T dscores; if requested, also y.
template <typename Config>
HL_DEVICE void GradK(const ReverseScanShared<Config>& smem, float (&acc)[kChunk / 8][4],
                     const float (&adjoint)[Config::kV / 8][4], const bf16* q, const bf16* k,
                     const bf16* v, const DecayTables& tables, bool wants_sums) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const int lane = FreshLaneId();
  const int columns_v = ColumnsFirst<kV>(lane);
  const int columns_k = ColumnsFirst<kK>(lane);
  const int rows_chunk = RowsFirst<kChunk>(lane);
  Clear(acc);
#pragma unroll
  for (int j = 0; j < kV / 16; ++j) {
    Fragment<Config::kTerms> a;
    PackFragment(a, adjoint[2 * j], adjoint[2 * j + 1]);
#pragma unroll
    for (int n = 0; n < kChunk / 16; ++n) {
      Fragment<Config::kTerms> b;
      LoadFragment<kV, false>(b, v, kChunk * kV, columns_v, 16 * n, 16 * j);
      MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
    }
  }
  ScaleAccumulatorColumns(acc, tables.outgoing);
  if (wants_sums) ChannelSums<Config>(smem.sums->y[WarpId()], acc, k);
  ScaleAccumulatorColumns(acc, tables.key_scale);
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j) {
    Fragment<Config::kTerms> a;
    LoadFragment<kK, true>(a, q, kChunk * kK, columns_k, 16 * j, WarpId() * 16);
#pragma unroll
    for (int n = 0; n <= j; ++n) {
      Fragment<Config::kTerms> b;
      LoadFragment<kChunk, true>(b, smem.dscores, kChunk * kChunk, rows_chunk, 16 * j, 16 * n);
      MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
    }
  }
}

// Stores [16 tokens, 32 columns] without transposing them, through the warp's stage.
HL_DEVICE void StoreRows(const float (&d)[4][4], bf16* stage, const Rows& rows, int length, int row,
                         int column) {
  const int lane = FreshLaneId();
  if (rows.is_wide) {  // [16, 32] fp32 fill the stage
    float* const wide = reinterpret_cast<float*>(stage);
    float* const data = reinterpret_cast<float*>(rows.data);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        wide[(lane / 4 + i / 2 * 8) * 32 + 8 * n + lane % 4 * 2 + i % 2] = d[n][i];
    }
    __syncwarp();
#pragma unroll 1
    for (int r = 0; r < 16; ++r) {
      if (row + r < length && column + lane < rows.dim)
        data[(row + r) * rows.stride_t + column + lane] = wide[r * 32 + lane];
    }
    __syncwarp();
    return;
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<uint32_t*>(stage + (lane / 4 + half * 8) * 32 + 8 * n + lane % 4 * 2) =
          PackBf16(d[n][2 * half], d[n][2 * half + 1]);
  }
  __syncwarp();
  bf16* const data = reinterpret_cast<bf16*>(rows.data);
  if (rows.aligned) {
#pragma unroll 1
    for (int i = lane; i < 16 * 4; i += 32) {
      const int r = i / 4, c = i % 4 * 8;
      if (row + r < length && column + c < rows.dim)
        *reinterpret_cast<uint4*>(data + (row + r) * rows.stride_t + column + c) =
            *reinterpret_cast<const uint4*>(stage + r * 32 + c);
    }
  } else {
#pragma unroll 1
    for (int i = lane; i < 16 * 32; i += 32) {
      const int r = i / 32, c = i % 32;
      if (row + r < length && column + c < rows.dim)
        data[(row + r) * rows.stride_t + column + c] = stage[i];
    }
  }
  __syncwarp();
}

// dv = scores^T dout + diag(c outgoing) k R, in tiles of 16 tokens and 32 columns.
template <typename Config>
HL_DEVICE void GradV(const ReverseScanShared<Config>& smem, const bf16* k, const bf16* dout,
                     const DecayTables& tables, const Rows& rows, int length) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const int lane = FreshLaneId();
  const int rows_k = RowsFirst<kK>(lane);
  const int rows_v = RowsFirst<kV>(lane);
  const int columns_chunk = ColumnsFirst<kChunk>(lane);
  const int row_tile = WarpId() % 4;
#pragma unroll 1
  for (int column = WarpId() / 4 * 32; column < kV; column += Config::kWarps / 4 * 32) {
    float acc[4][4];
    Clear(acc);
#pragma unroll 2
    for (int c = 0; c < kK; c += 16) {
      Fragment<Config::kTerms> a;
      LoadFragment<kK, false>(a, k, kChunk * kK, rows_k, 16 * row_tile, c);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        Fragment<Config::kTerms> b;
        LoadFragment<kV, true>(b, smem.adjoint, kK * kV, rows_v, c, column + 16 * n);
        MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
      }
    }
    const float top = tables.outgoing_scaled[16 * row_tile + lane / 4];
    const float bottom = tables.outgoing_scaled[16 * row_tile + lane / 4 + 8];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      acc[n][0] *= top;
      acc[n][1] *= top;
      acc[n][2] *= bottom;
      acc[n][3] *= bottom;
    }
#pragma unroll 1
    for (int r = 16 * row_tile; r < kChunk; r += 16) {
      Fragment<Config::kTerms> a;
      LoadFragment<kChunk, true>(a, smem.scores, kChunk * kChunk, columns_chunk, r, 16 * row_tile);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        Fragment<Config::kTerms> b;
        LoadFragment<kV, true>(b, dout, kChunk * kV, rows_v, r, column + 16 * n);
        MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
      }
    }
    StoreRows(acc, smem.out + WarpId() * kChunk * 16, rows, length, 16 * row_tile, column);
  }
}

// Collects a token's sums; called by one warp after all of them are complete.
template <typename Config>
HL_DEVICE TokenSums SumsOf(const GradSums<Config::kWarps>& sums, int r) {
  TokenSums token = {};
#pragma unroll
  for (int part = 0; part < Config::kWarps / 4; ++part) token.row += sums.row[part][r];
#pragma unroll
  for (int tile = 0; tile < 4; ++tile)
    if (tile >= r / 16) token.column += sums.column[tile][r];
  token.diagonal = sums.diagonal[r];
#pragma unroll 1
  for (int w = 0; w < Config::kWarps; ++w) {
    token.x += sums.x[w][r];
    token.y += sums.y[w][r];
  }
  return token;
}
template <typename Config>
HL_DEVICE void FinishChunk(GradSums<Config::kWarps>& sums, const DecayTables& tables,
                           const ReverseScanParams& params, const ChunkEntry& chunk,
                           const BlockIndex& block_index) {
  float through = 0;
#pragma unroll 1
  for (int w = 0; w < Config::kWarps; ++w) through += sums.through[w];
  const float constant =
      FinishDecays([&](int r) { return SumsOf<Config>(sums, r); }, through, tables, params, chunk,
                   block_index.head, PartOf(params, block_index));
  if (LaneId() == 0) sums.dlambda += constant;
}

// Three barriers per chunk: (1) its tiles and tables are complete; (2) the scores and the copy of R
// are complete; (3) the sums are complete, if gradients of decays or of key scales are requested,
// or, with one stage, all reads of it are done.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ReverseScanKernel(const ReverseScanParams params) {
  constexpr int kK = Config::kK, kV = Config::kV, kTerms = Config::kTerms;
  constexpr int kRows = kTerms * kChunk;
  HL_DYNAMIC_SMEM(raw);
  SmemCarver carver(raw);
  ReverseScanShared<Config> smem;
  constexpr int kStages = Config::kStages;   // 1: loads do not overlap
  constexpr bool kLoadsAhead = kTerms == 1;  // a load of two terms would only hold registers
  smem.q = carver.Take<bf16>(kStages * kRows * kK);
  smem.k = carver.Take<bf16>(kStages * kRows * kK);
  smem.v = carver.Take<bf16>(kStages * kRows * kV);
  smem.dout = carver.Take<bf16>(kStages * kRows * kV);
  smem.adjoint = carver.Take<bf16>(kTerms * kK * kV);
  smem.scores = carver.Take<bf16>(kRows * kChunk);
  smem.dscores = carver.Take<bf16>(kRows * kChunk);
  smem.out = carver.Take<bf16>(kChunk * kK);
  smem.tables = carver.Take<DecayTables>(2);
  smem.sums = carver.Take<GradSums<Config::kWarps>>(1);
  smem.block_index = carver.Take<BlockIndex>(1);

  const DecayAttentionGradArgs& grads = params.grads;
  const DecayAttentionArgs& args = grads.forward;
  const int every = params.checkpoint_every;
  const bool wants_sums = params.dlog_decay.data != nullptr || params.dlambda != nullptr ||
                          params.dkey_scale.data != nullptr;
  // The same value for all threads. Shared memory saves registers, which are scarce here.
  if (threadIdx.x == 0) *smem.block_index = MakeBlockIndex(args, params.shape, every);
  __syncthreads();
  const BlockIndex& block_index = *smem.block_index;
  const GroupOrder order = {block_index.begin, block_index.end, every};
  const int64_t state_elements = int64_t{1} * args.head_dim_k * args.head_dim_v;
  const auto rows = [&] {
    return StateRows{args.head_dim_k, args.head_dim_v,
                     block_index.key_slice * kK + FreshWarpId() * 16, block_index.slice * kV};
  };
  constexpr int kSlot = kTerms * kK * kV / 8;  // units of 16 bytes
  uint4* const scratch = static_cast<uint4*>(params.group) +
                         int64_t{1} * blockIdx.x * every * kSlot +
                         WarpId() * (kSlot / Config::kWarps);

  float adjoint[kV / 8][4];
  Clear(adjoint);
  if (params.segment_states != nullptr) {
    LoadState<false>(adjoint, params.segment_states + block_index.piece * state_elements, rows());
  } else if (grads.dfinal_state != nullptr) {
    LoadState<false>(
        adjoint, static_cast<const float*>(grads.dfinal_state) + block_index.state * state_elements,
        rows());
  }
  const int num_items = order.num_items();
  // Loads an item into its stage: one of two, or the only one.
  const auto load = [&](int item) {
    if (item >= num_items) return;
    bool sweeps;
    const int index = order.ChunkOf(item, sweeps);
    LoadChunkRev(smem, grads, args.chunks[index], block_index, kStages == 2 ? item % 2 : 0, sweeps);
    CpAsyncCommit();
  };
  const auto fill_tables = [&](int item) {
    if (WarpId() != IdleWarp<Config>() || item >= num_items) return;
    bool sweeps;
    const int index = order.ChunkOf(item, sweeps);
    FillDecayTables(smem.tables[item % 2], args, args.chunks[index], block_index.head,
                    params.row_scales);
  };
  if (kLoadsAhead) load(0);
  fill_tables(0);
  int item = 0;
  if (threadIdx.x == 32) smem.sums->dlambda = 0;
#pragma unroll 1
  for (int group = order.num_groups() - 1; group >= 0; --group) {
    const int group_begin = order.group_begin(group), group_size = order.group_size(group);
    {
      float state[kV / 8][4];
      LoadCheckpoint<Config>(state, params, block_index, group_begin, rows());
#pragma unroll 1
      for (int i = 0; i < group_size; ++i) {
        if ((args.chunks[group_begin + i].flags & kChunkResets) != 0) Clear(state);
        KeepState<Config>(scratch + i * kSlot, state);
        if (i == group_size - 1) break;
        const int stage = kStages == 2 ? item % 2 : 0;
        if (!kLoadsAhead) load(item);
        CpAsyncWait<0>();
        __syncthreads();
        if (kStages == 2) load(item + 1);
        fill_tables(item + 1);
        Scale(state, smem.tables[item % 2].transition);
        AccumulateOuter<kTerms, kK, kV>(state, smem.k + stage * kRows * kK,
                                        smem.v + stage * kRows * kV,
                                        smem.tables[item % 2].outgoing_scaled);
        if (kStages == 1) {
          __syncthreads();
          if (kLoadsAhead) load(item + 1);
        }
        ++item;
      }
    }
#pragma unroll 1
    for (int i = group_size - 1; i >= 0; --i) {
      const ChunkEntry& chunk = args.chunks[group_begin + i];
      const int stage = kStages == 2 ? item % 2 : 0;
      const bf16* const q = smem.q + stage * kRows * kK;
      const bf16* const k = smem.k + stage * kRows * kK;
      const bf16* const v = smem.v + stage * kRows * kV;
      const bf16* const dout = smem.dout + stage * kRows * kV;
      const DecayTables& tables = smem.tables[item % 2];
      bf16* const out = smem.out + WarpId() * kChunk * 16;
      if (!kLoadsAhead) load(item);
      CpAsyncWait<0>();
      __syncthreads();
      if (kStages == 2) load(item + 1);
      fill_tables(item + 1);
      PairTiles(smem, q, k, v, dout, tables, wants_sums);
      CopyAdjoint<Config>(smem.adjoint, adjoint);
      __syncthreads();
      {
        float acc[kChunk / 8][4];
        GradQ<Config>(smem, acc, scratch + i * kSlot, adjoint, q, k, dout, tables, wants_sums);
        StoreGradient<Config>(acc, out, params.dq, args, chunk, block_index);
        GradK<Config>(smem, acc, adjoint, q, k, v, tables, wants_sums);
        StoreGradient<Config>(acc, out, params.dk, args, chunk, block_index);
      }
      GradV<Config>(smem, k, dout, tables,
                    RowsOf(SliceOf(params.dv, args, block_index.key_slice, args.head_dim_v), chunk,
                           block_index.head, block_index.slice * kV, args.head_dim_v),
                    chunk.length);
      Scale(adjoint, tables.transition);
      AccumulateOuter<kTerms, kK, kV>(adjoint, q, dout, tables.incoming);
      if ((chunk.flags & kChunkResets) != 0) Clear(adjoint);
      if (kStages == 1 || wants_sums) __syncthreads();
      if (kStages == 1 && kLoadsAhead) load(item + 1);
      if (wants_sums && WarpId() == 1)
        FinishChunk<Config>(*smem.sums, tables, params, chunk, block_index);
      ++item;
    }
  }
  if (grads.dinitial_state != nullptr && block_index.starts)
    StoreState<false>(
        adjoint, static_cast<float*>(grads.dinitial_state) + block_index.state * state_elements,
        rows());
  if (params.dlambda != nullptr && threadIdx.x == 32)
    params.dlambda[PieceOf(params, PartOf(params, block_index), block_index)] = smem.sums->dlambda;
}

template <int kK, int kV, int kStages, int kTerms>
void LaunchReverseScanIn(const ReverseScanParams& params, cudaStream_t stream) {
  using Config = ReverseScanConfig<kK, kV, kStages, kTerms>;
  Launch({NumBlocks(params.grads.forward, params.shape), Config::kThreads, Config::kSmemBytes,
          "decay attention reverse scan"},
         stream, ReverseScanKernel<Config>, params);
}

// Uses two stages if the device has enough shared memory; with two terms, always one.
template <int kK, int kV, int kTerms>
void LaunchReverseScan(const ReverseScanParams& params, int shared_limit, cudaStream_t stream) {
  if constexpr (kTerms == 2 || WantsOneStage(kK, kV)) {
    if (kTerms == 2 || shared_limit < ReverseScanBytes(kK, kV, /*stages=*/2)) {
      LaunchReverseScanIn<kK, kV, 1, kTerms>(params, stream);
      return;
    }
  }
  if constexpr (kTerms == 1) LaunchReverseScanIn<kK, kV, 2, kTerms>(params, stream);
}

}  // namespace halflife::kernels::decay
