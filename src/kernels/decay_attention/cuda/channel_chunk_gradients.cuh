// Gradients of decay attention with per-channel decays, in chunks of 64 tokens. All chunks and
// heads are processed in parallel, one per block, from the states that warpgroup_states.cuh has
// stored (S before and R = dL/d(state) after each chunk) and the operands of
// channel_chunk_operands.cuh.
//
//   w_rs = product of the decays in (s, r];  P, Q, G as in channel_chunks.h;  D_rs = dout_r v_s
//   dv = keys R + scores^T dout
//   dq_r = scale (P_r x_r + sum_{s <= r} D_rs w_rs c_s k_s),   x = dout S^T
//   dk_s = c_s (Q_s y_s + sum_{r >= s} D_rs w_rs scale q_r),   y = v R^T
//   dg_t = sum_{r >= t} (a_r + scale q_r P_r x_r) + sum_{s < t} c_s k_s Q_s y_s - sum_{s >= t} b_s
//          + G rowsum(S R)
//     a_r, b_s: what pairs s < r contribute to q_r dq_r and to k_s dk_s (channel_gradients.cuh)
//
// A pair takes its weight from its tiles of 16 tokens. In two tiles: the decays of the key after s
// to its tile's end and of the query from its tile's start to r are in bf16 operands, and those of
// the tiles between are multiplied into accumulators. a and b multiply the same rounded operands,
// so that a pair which t does not separate cancels. In one tile: token by token in fp32, one
// channel per thread.
//
// The keys come first and then the queries, in the same buffers. Columns of V are read 64 at a
// time, one slice ahead.
//
// Shared memory in KiB, K = 128, C = 64:
//   | arena 88: 2 x (v [C, 64] 8 | dout 8 | R [K, 64] 16) | keys [C, K] 16 | scores [C, C] 8;
//   |   then y [C, K + 8] 34 | pairs 34 | q, then k, decayed within tiles, 16;
//   |   then 2 x (dout 8 | S 16) | k as before; then x 34 | pairs 34 | k
//   | D [C, C] 8 | D of the four tiles in fp32, and transposed 8 | vectors 7 | = kSmemBytes
#pragma once

#include "kernels/common/cuda/device90.h"
#include "kernels/decay_attention/cuda/channel_chunks.h"
#include "kernels/decay_attention/cuda/channel_tile.cuh"
#include "kernels/decay_attention/cuda/chunk_states_layout.cuh"

namespace halflife::kernels::decay {

template <int kK>
struct ChunkGradVectors {
  float query_scale[kChunk], key_scale[kChunk];  // 0 past the chunk's end
  float totals[kTilesPerChunk][kK];              // log2 of the product of each tile's decays
  // sums over the tokens of each tile: of c k Q y; of a + scale q P x - b
  float early[kTilesPerChunk][kK], late[kTilesPerChunk][kK];
  float through[kK];  // the sums of S R over V
};

template <int kK_>
struct ChannelChunkGradConfig {
  static constexpr int kK = kK_, kThreads = 2 * kK, kWarps = kThreads / 32;
  static constexpr int kMinBlocksPerSm = 2;
  // A warp has a tile of 16 tokens of each product, and 1 / kGroups of the columns.
  static constexpr int kGroups = kWarps / kTilesPerChunk;
  static constexpr int kChannelTiles = kK / 8 / kGroups;     // accumulators of [tokens, K]
  static constexpr int kColumnTiles = kChunk / 8 / kGroups;  // of [tokens, 64]
  static constexpr int kPitch = kK + 8;  // of fp32 rows: accumulators then go to different banks
  static constexpr int kArenaBytes = ChannelChunkGradArenaBytes(kK);
  static constexpr int kSmemBytes = ChannelChunkGradientsSharedBytes(kK);
  static_assert(sizeof(ChunkGradVectors<kK>) == ChannelChunkGradVectorsBytes(kK));
  static_assert(2 * (kChunk + kK) * kStateBlock * 2 <= 2 * kChunk * kPitch * 4,
                "k stays in the arena while the states are multiplied with queries");
};

// The chunk and head of a block. The same for all threads: shared memory saves registers.
struct ChunkOfHead {
  ChunkEntry chunk;
  int index, head;
  int64_t at;  // ChunkHeadIndex
  Rows q, k, log_decay;
  Rows dq, dk, dlog_decay;  // without data: not computed
};
static_assert(sizeof(ChunkOfHead) == kChunkOfHeadBytes);

// A slice of 64 columns of V in the arena.
struct GradSlice {
  bf16 *v, *dout;  // [64, 64]; v only with keys
  bf16* state;     // [kK, 64]: R with keys, S with queries
};
template <typename Config>
struct ChunkGradShared {
  unsigned char* arena;
  bf16* dscores;                  // D [64, 64]; only tiles below the diagonal are read
  float *near, *near_transposed;  // D of each tile, [4][16, 16]
  ChunkGradVectors<Config::kK>* vectors;
  ChunkOfHead* own;

  HL_DEVICE bf16* Matrix(int offset) const { return reinterpret_cast<bf16*>(arena) + offset; }
  // The arena while states are multiplied: with keys, then with queries.
  HL_DEVICE GradSlice SliceOfKeys(int stage) const {
    bf16* const first = Matrix(stage * (2 * kChunk + Config::kK) * kStateBlock);
    return {first, first + kChunk * kStateBlock, first + 2 * kChunk * kStateBlock};
  }
  HL_DEVICE bf16* keys() const { return Matrix(2 * (2 * kChunk + Config::kK) * kStateBlock); }
  HL_DEVICE bf16* scores() const { return keys() + kChunk * Config::kK; }
  HL_DEVICE GradSlice SliceOfQueries(int stage) const {
    bf16* const first = Matrix(stage * (kChunk + Config::kK) * kStateBlock);
    return {nullptr, first, first + kChunk * kStateBlock};
  }
  // The arena while channels are processed.
  HL_DEVICE float* products() const { return reinterpret_cast<float*>(arena); }
  HL_DEVICE float* pairs() const { return products() + kChunk * Config::kPitch; }
  HL_DEVICE bf16* decayed() const {
    return reinterpret_cast<bf16*>(pairs() + kChunk * Config::kPitch);
  }
};

template <typename Config>
HL_DEVICE ChunkGradShared<Config> CarveChunkGrad(unsigned char* raw) {
  SmemCarver carver(raw);
  ChunkGradShared<Config> smem;
  smem.arena = carver.Take<unsigned char>(Config::kArenaBytes);
  smem.dscores = carver.Take<bf16>(kChunk * kChunk);
  smem.near = carver.Take<float>(kChunk * kTile);
  smem.near_transposed = carver.Take<float>(kChunk * kTile);
  smem.vectors = carver.Take<ChunkGradVectors<Config::kK>>(1);
  smem.own = carver.Take<ChunkOfHead>(1);
  return smem;
}

// ---- products with states: a warp has tokens 16 (w % 4) .. + 15 ----

HL_DEVICE int TokensOfWarp() { return FreshWarpId() % kTilesPerChunk * kTile; }

// Returns rows of 64 columns of S or R [kK, V], from column `first` on.
template <int kK>
HL_DEVICE Rows StateColumns(const void* states, const ReverseScanParams& params, int64_t at,
                            int first) {
  const int columns = params.grads.forward.head_dim_v / params.shape.num_slices;
  const int part = first / kStateBlock >> (columns > kStateBlock ? 1 : 0);  // first / columns
  const int64_t slot = at * params.shape.num_slices + part;
  bf16* const data = static_cast<bf16*>(const_cast<void*>(states)) + slot * kK * columns;
  return {reinterpret_cast<char*>(data + (first - part * columns)), columns, kStateBlock,
          /*aligned=*/true, /*is_wide=*/false};
}
template <typename Config>
HL_DEVICE void LoadGradSlice(const GradSlice& slice, const void* states,
                             const ReverseScanParams& params, const ChunkOfHead& own, int first) {
  constexpr int kK = Config::kK, kThreads = Config::kThreads;
  const DecayAttentionArgs& args = params.grads.forward;
  const int length = own.chunk.length, dim = args.head_dim_v;
  if (slice.v != nullptr)
    LoadTile<kStateBlock, kThreads>(
        slice.v,
        RowsOf(args.v, own.chunk, SharedHead(own.head, args.num_v_heads, args.num_heads), first,
               dim),
        length);
  LoadTile<kStateBlock, kThreads>(
      slice.dout, RowsOf(params.grads.dout, own.chunk, own.head, first, dim), length);
  LoadTile<kStateBlock, kThreads, kK>(slice.state, StateColumns<kK>(states, params, own.at, first),
                                      kK);
}
// Calls visit(slice, first column) for all columns of V. One barrier per slice: it is loaded, and
// the other stage is free.
template <typename Load, typename Visit>
HL_DEVICE void VisitSlices(int num_columns, const Load& load, const Visit& visit) {
  load(0, 0);
  CpAsyncCommit();
#pragma unroll 1
  for (int first = 0; first < num_columns; first += kStateBlock) {
    const int stage = first / kStateBlock % 2;
    CpAsyncWait<0>();
    __syncthreads();
    if (first + kStateBlock < num_columns) load(1 - stage, first + kStateBlock);
    CpAsyncCommit();
    visit(stage, first);
  }
  __syncthreads();
}

// acc += x y^T over a slice's columns: x [64, 64] by tokens of the warp, y [.., 64] by rows from
// `first` on.
template <int kTiles>
HL_DEVICE void AddPairsOfRows(float (&acc)[kTiles][4], const bf16* x, const bf16* y, int first) {
  const int lane = FreshLaneId();
  const int rows = RowsFirst<kStateBlock>(lane), columns = ColumnsFirst<kStateBlock>(lane);
  const int tokens = TokensOfWarp();
#pragma unroll 2
  for (int c = 0; c < kStateBlock; c += 16) {
    uint32_t a[4];
    LoadFragment<kStateBlock, false>(a, x, rows, tokens, c);
#pragma unroll
    for (int n = 0; n < kTiles / 2; ++n) {
      uint32_t b[4];
      LoadFragment<kStateBlock, false>(b, y, columns, first + 16 * n, c);
      MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
    }
  }
}
// acc += a y for one A fragment: y [.., kDim] by rows from `row` on, columns from `first` on.
template <int kDim, int kTiles>
HL_DEVICE void AddRows(float (&acc)[kTiles][4], const uint32_t (&a)[4], const bf16* y, int row,
                       int first) {
  const int rows = RowsFirst<kDim>(FreshLaneId());
#pragma unroll
  for (int n = 0; n < kTiles / 2; ++n) {
    uint32_t b[4];
    LoadFragment<kDim, true>(b, y, rows, row, first + 16 * n);
    MmaPair(acc[2 * n], acc[2 * n + 1], a, b);
  }
}

// Stores the warp's tokens of dv; `rows` starts at the warp's first column.
template <int kTiles>
HL_DEVICE void StoreValueGradients(const float (&d)[kTiles][4], const Rows& rows, int length) {
  const int lane = FreshLaneId();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = TokensOfWarp() + lane / 4 + 8 * half;
    const int64_t row = token * rows.stride_t;
#pragma unroll
    for (int n = 0; n < kTiles; n += 4) {
      if (rows.is_wide) {
        float* const target = reinterpret_cast<float*>(rows.data) + row + 8 * n + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (token < length)
            *reinterpret_cast<float2*>(target + 8 * i) =
                make_float2(d[n + i][2 * half], d[n + i][2 * half + 1]);
        continue;
      }
      const uint4 values = RowOfQuad(d + n, half);  // executed by all lanes
      if (token < length)
        *reinterpret_cast<uint4*>(reinterpret_cast<bf16*>(rows.data) + row + 8 * n + lane % 4 * 8) =
            values;
    }
  }
}
// dv = keys R + scores^T dout for the warp's columns of a slice.
template <typename Config>
HL_DEVICE void GradChunkValues(const ChunkGradShared<Config>& smem, const GradSlice& slice,
                               const Rows& rows, int column, int length) {
  constexpr int kK = Config::kK;
  const int lane = FreshLaneId(), tokens = TokensOfWarp();
  float acc[Config::kColumnTiles][4];
  Clear(acc);
  uint32_t a[4];
#pragma unroll 1
  for (int c = 0; c < kK; c += 16) {
    LoadFragment<kK, false>(a, smem.keys(), RowsFirst<kK>(lane), tokens, c);
    AddRows<kStateBlock>(acc, a, slice.state, c, column);
  }
#pragma unroll 1
  for (int r = tokens; r < kChunk; r += kTile) {  // no earlier query sees these keys
    LoadFragment<kChunk, true>(a, smem.scores(), ColumnsFirst<kChunk>(lane), r, tokens);
    AddRows<kStateBlock>(acc, a, slice.dout, r, column);
  }
  StoreValueGradients(acc, rows, length);
}

// Stores accumulators as fp32 [64, kPitch].
template <typename Config>
HL_DEVICE void StoreByChannel(float* target, const float (&d)[Config::kChannelTiles][4],
                              int first) {
  const int lane = FreshLaneId();
#pragma unroll
  for (int n = 0; n < Config::kChannelTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<float2*>(target + (TokensOfWarp() + lane / 4 + 8 * half) * Config::kPitch +
                                 first + 8 * n + lane % 4 * 2) =
          make_float2(d[n][2 * half], d[n][2 * half + 1]);
  }
}
// Stores D: rounded, and that of pairs within tiles in fp32.
template <typename Config>
HL_DEVICE void StoreScoreGradients(const ChunkGradShared<Config>& smem,
                                   const float (&d)[Config::kColumnTiles][4], int first) {
  const int lane = FreshLaneId(), tokens = TokensOfWarp();
#pragma unroll
  for (int n = 0; n < Config::kColumnTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = lane / 4 + 8 * half, s = first + 8 * n + lane % 4 * 2, own = s - tokens;
      const float x = d[n][2 * half], y = d[n][2 * half + 1];
      *reinterpret_cast<uint32_t*>(smem.dscores + TileOffset<kChunk>(tokens + r, s)) =
          PackBf16(x, y);
      if (own < 0 || own >= kTile) continue;
      *reinterpret_cast<float2*>(smem.near + (tokens + r) * kTile + own) = make_float2(x, y);
      smem.near_transposed[(tokens + own) * kTile + r] = x;
      smem.near_transposed[(tokens + own + 1) * kTile + r] = y;
    }
  }
}

// Half of a row of 64 columns of R, which a thread multiplies with its half of S.
struct AdjointRow {
  uint4 units[4];
};
template <int kK>
HL_DEVICE void LoadAdjointRow(AdjointRow& row, const ReverseScanParams& params, int64_t at,
                              int first) {
  const Rows rows = StateColumns<kK>(params.adjoints, params, at, first);
  const int thread = static_cast<int>(threadIdx.x);
  const bf16* const source =
      reinterpret_cast<const bf16*>(rows.data) + thread / 2 * rows.stride_t + thread % 2 * 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) row.units[i] = *reinterpret_cast<const uint4*>(source + 8 * i);
}
HL_DEVICE float TimesStateRow(const AdjointRow& adjoint, const bf16* state) {
  const int row = static_cast<int>(threadIdx.x) / 2, half = static_cast<int>(threadIdx.x) % 2;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 s =
        *reinterpret_cast<const uint4*>(state + TileOffset<kStateBlock>(row, 8 * (4 * half + i)));
    const uint4& r = adjoint.units[i];
    const uint32_t of_s[4] = {s.x, s.y, s.z, s.w}, of_r[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sum = fmaf(UnpackLo(of_s[j]), UnpackLo(of_r[j]), sum);
      sum = fmaf(UnpackHi(of_s[j]), UnpackHi(of_r[j]), sum);
    }
  }
  return sum;
}

// ---- pairs of tokens: a thread has one channel of two tiles ----

// The channel of a thread, and the half whose tiles 2 half and 2 half + 1 it processes.
template <int kK>
HL_DEVICE int OwnChannel() {
  return static_cast<int>(threadIdx.x) % kK;
}
template <int kK>
HL_DEVICE int OwnHalf() {
  return static_cast<int>(threadIdx.x) / kK;
}

// A channel of some rows, from the row `first` on.
template <typename T>
struct ChannelColumn {
  T* at;
  int64_t step;

  HL_DEVICE ChannelColumn(const Rows& rows, int first, int c)
      : at(reinterpret_cast<T*>(rows.data) + (first * rows.stride_t + c)), step(rows.stride_t) {}
  // Returns the address of this row's element and goes to the next row.
  HL_DEVICE T* Next() {
    T* const element = at;
    at += step;
    return element;
  }
};
// A channel's q, k and log decays of a tile, loaded together. 0 past the chunk's end.
struct TileOfChannel {
  uint32_t qk[kTile];  // q in the lower half, k in the upper
  float log2_decay[kTile];

  HL_DEVICE float q(int t) const { return UnpackLo(qk[t]); }
  HL_DEVICE float k(int t) const { return UnpackHi(qk[t]); }
};
HL_DEVICE void LoadTileOfChannel(TileOfChannel& tile, const ChunkOfHead& own, int first, int c) {
  ChannelColumn<const uint16_t> q(own.q, first, c), k(own.k, first, c);
  ChannelColumn<const float> log_decay(own.log_decay, first, c);
  const int live = own.chunk.length - first;
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    const uint16_t *const q_at = q.Next(), *const k_at = k.Next();
    const float* const decay_at = log_decay.Next();
    uint32_t low = 0, high = 0;
    tile.log2_decay[t] = 0;
    if (t < live) {
      low = *q_at;
      high = *k_at;
      tile.log2_decay[t] = *decay_at;
    }
    tile.qk[t] = low | high << 16;
  }
#pragma unroll
  for (int t = 0; t < kTile; ++t) tile.log2_decay[t] *= kLog2E;
}

// Computes TileOffset for a row of a tile of 16, in fewer instructions.
template <int kK>
HL_DEVICE int DecayedOffset(int row, int c) {
  return row * kK + (c ^ row % 8 * 8);
}
// scale q, or c k, with the decays of `log2_decay`: the operand of pairs in different tiles.
HL_DEVICE bf16 Decayed(float x, float scale, float log2_decay) {
  return ToBf16(x * (scale * Exp2Approx(log2_decay)));
}
// Stores q, decayed from the start of a tile to each token, and the sums of the tile's log decays.
template <typename Config>
HL_DEVICE void DecayQueries(const ChunkGradShared<Config>& smem) {
  constexpr int kK = Config::kK;
  const int c = OwnChannel<kK>(), live = smem.own->chunk.length;
#pragma unroll 1
  for (int tile = 2 * OwnHalf<kK>(), end = tile + 2; tile < end; ++tile) {
    const int first = tile * kTile;
    ChannelColumn<const bf16> q(smem.own->q, first, c);
    ChannelColumn<const float> log_decay(smem.own->log_decay, first, c);
    bf16* const target = smem.decayed() + first * kK;
    float queries[kTile], log2_decay[kTile], sum = 0;
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
      const bf16* const q_at = q.Next();
      const float* const decay_at = log_decay.Next();
      queries[r] = first + r < live ? ToFloat(*q_at) : 0.0f;
      log2_decay[r] = first + r < live ? *decay_at * kLog2E : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
      sum += log2_decay[r];
      target[DecayedOffset<kK>(r, c)] =
          Decayed(queries[r], smem.vectors->query_scale[first + r], sum);
    }
    smem.vectors->totals[tile][c] = sum;
  }
}

// Multiplies accumulators by the decays of a whole tile, by columns from `first` on.
template <int kTiles>
HL_DEVICE void DecayThrough(float (&acc)[kTiles][4], const float* totals) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float2 total = *reinterpret_cast<const float2*>(totals + 8 * n + FreshLaneId() % 4 * 2);
    const float x = Exp2Approx(total.x), y = Exp2Approx(total.y);
    acc[n][0] *= x;
    acc[n][1] *= y;
    acc[n][2] *= x;
    acc[n][3] *= y;
  }
}
// Stores the gradients of the warp's keys from queries of later tiles, before the decays of the
// keys' own tile: sum over tiles i of (decays of the tiles between) D_i^T q_i.
template <typename Config>
HL_DEVICE void PairsOfKeys(const ChunkGradShared<Config>& smem, int first) {
  constexpr int kLast = kTilesPerChunk - 1;
  const int lane = FreshLaneId(), own = TokensOfWarp();
  float acc[Config::kChannelTiles][4];
  Clear(acc);
#pragma unroll 1
  for (int tile = kLast; tile * kTile > own; --tile) {
    if (tile < kLast) DecayThrough(acc, smem.vectors->totals[tile] + first);
    uint32_t a[4];
    LoadFragment<kChunk, true>(a, smem.dscores, ColumnsFirst<kChunk>(lane), tile * kTile, own);
    AddRows<Config::kK>(acc, a, smem.decayed(), tile * kTile, first);
  }
  StoreByChannel<Config>(smem.pairs(), acc, first);
}
// Stores the gradients of the warp's queries from keys of earlier tiles, likewise.
template <typename Config>
HL_DEVICE void PairsOfQueries(const ChunkGradShared<Config>& smem, int first) {
  const int lane = FreshLaneId(), own = TokensOfWarp();
  float acc[Config::kChannelTiles][4];
  Clear(acc);
#pragma unroll 1
  for (int tile = 0; tile * kTile < own; ++tile) {
    if (tile > 0) DecayThrough(acc, smem.vectors->totals[tile] + first);
    uint32_t a[4];
    LoadFragment<kChunk, false>(a, smem.dscores, RowsFirst<kChunk>(lane), own, tile * kTile);
    AddRows<Config::kK>(acc, a, smem.decayed(), tile * kTile, first);
  }
  StoreByChannel<Config>(smem.pairs(), acc, first);
}

// A thread's gradients of log decays: of a channel of two tiles. What the keys contribute is stored
// in the gradient itself, or summed for a constant decay, until the queries are complete.
struct DecayGradients {
  uint32_t cut;    // a bit per token of both tiles: its decay has no gradient
  float constant;  // sum over the tokens

  HL_DEVICE bool IsCut(int token) const { return (cut >> token % (2 * kTile) & 1) != 0; }
  HL_DEVICE void Add(int token, float gradient) {
    if (!IsCut(token)) constant += gradient;
  }
};

HL_DEVICE void StoreElement(char* at, bool is_wide, float value) {
  if (is_wide) {
    *reinterpret_cast<float*>(at) = value;
  } else {
    *reinterpret_cast<bf16*>(at) = ToBf16(value);
  }
}

// Computes dk of a tile's keys and sum_{s < t} c_s k_s Q y_s - sum_{s >= t} b_s over the tile.
// Stores k, decayed from after each token to the end of its tile, in place of the queries.
// keeps_products: stores k_s dk_s, without c, in place of the pairs.
template <typename Config>
HL_DEVICE void GradTileKeys(const ChunkGradShared<Config>& smem, int tile, bool keeps_products,
                            DecayGradients& decays) {
  constexpr int kK = Config::kK, kPitch = Config::kPitch;
  const int c = OwnChannel<kK>(), first = tile * kTile;
  ChunkGradVectors<kK>& vectors = *smem.vectors;
  float* const products = smem.products() + first * kPitch + c;
  float* const pairs = smem.pairs() + first * kPitch + c;
  const float* const query_scales = vectors.query_scale + first;
  const float* const key_scales = vectors.key_scale + first;
  bf16* const decayed = smem.decayed() + first * kK;
  float after = 0;
#pragma unroll 1
  for (int later = tile + 1; later < kTilesPerChunk; ++later) after += vectors.totals[later][c];
  after = Exp2Approx(after);
  TileOfChannel own;
  LoadTileOfChannel(own, *smem.own, first, c);
  const int live = smem.own->chunk.length - first;
  const bool is_wide = smem.own->dk.is_wide;
  const int64_t step = smem.own->dk.stride_t * (is_wide ? 4 : 2);
  char* dk = smem.own->dk.data + (first + kTile - 1) * step + c * (is_wide ? 4 : 2);
  float queries[kTile], following[kTile];  // q decayed back to token s; sums of b
  float suffix = 0, next_decay = 1, sum_b = 0;
#pragma unroll
  for (int s = kTile - 1; s >= 0; --s) {
    if (s % 2 == 1) KeepLoadsApart();
    float dscores[kTile];
    LoadRow(dscores, smem.near_transposed + (first + s) * kTile);
    float within = 0;
#pragma unroll
    for (int r = s + 1; r < kTile; ++r) {
      queries[r] *= next_decay;
      within = fmaf(dscores[r], queries[r], within);
    }
    queries[s] = query_scales[s] * own.q(s);
    const float key = own.k(s), key_scale = key_scales[s], scaled = key * key_scale;
    const float others = pairs[s * kPitch], outgoing = Exp2Approx(suffix);
    const float from_after = outgoing * (after * products[s * kPitch]);
    const float gradient =
        from_after + fmaf(outgoing, others, fmaf(dscores[s], queries[s], within));
    if (s < live) StoreElement(dk, is_wide, key_scale * gradient);
    dk -= step;
    sum_b = fmaf(scaled, within, sum_b);
    const bf16 rounded = Decayed(key, key_scale, suffix);
    decayed[DecayedOffset<kK>(s, c)] = rounded;
    sum_b = fmaf(ToFloat(rounded), others, sum_b);
    following[s] = sum_b;
    products[s * kPitch] = scaled * from_after;
    if (keeps_products) pairs[s * kPitch] = key * gradient;
    suffix += own.log2_decay[s];
    next_decay = Exp2Approx(own.log2_decay[s]);
    if (next_decay == 0) decays.cut |= 1u << (first + s) % (2 * kTile);
  }
  const bool is_stored = smem.own->dlog_decay.data != nullptr;
  ChannelColumn<float> gradients(smem.own->dlog_decay, first, c);
  float before = 0;
#pragma unroll
  for (int t = 0; t < kTile; ++t) {
    const float gradient = before - following[t];
    before += products[t * kPitch];
    float* const stored = gradients.Next();
    if (t >= live) continue;
    if (is_stored) {
      *stored = gradient;
    } else {
      decays.Add(first + t, gradient);
    }
  }
  vectors.early[tile][c] = before;
  vectors.late[tile][c] = -sum_b;
}

// Computes dq of a tile's queries. Stores sum_{r >= t} (a_r + scale q_r P x_r) over the tile in
// place of x.
template <typename Config>
HL_DEVICE void GradTileQueries(const ChunkGradShared<Config>& smem, int tile) {
  constexpr int kK = Config::kK, kPitch = Config::kPitch;
  const int c = OwnChannel<kK>(), first = tile * kTile;
  ChunkGradVectors<kK>& vectors = *smem.vectors;
  float* const products = smem.products() + first * kPitch + c;
  const float* const pairs = smem.pairs() + first * kPitch + c;
  const float* const query_scales = vectors.query_scale + first;
  const float* const key_scales = vectors.key_scale + first;
  float before = 0;
#pragma unroll 1
  for (int earlier = 0; earlier < tile; ++earlier) before += vectors.totals[earlier][c];
  before = Exp2Approx(before);
  TileOfChannel own;
  LoadTileOfChannel(own, *smem.own, first, c);
  const int live = smem.own->chunk.length - first;
  const bool is_wide = smem.own->dq.is_wide;
  const int64_t step = smem.own->dq.stride_t * (is_wide ? 4 : 2);
  char* dq = smem.own->dq.data + first * step + c * (is_wide ? 4 : 2);
  float keys[kTile];  // decayed up to token r
  float prefix = 0;
#pragma unroll
  for (int r = 0; r < kTile; ++r) {
    if (r % 2 == 0) KeepLoadsApart();
    float dscores[kTile];
    LoadRow(dscores, smem.near + (first + r) * kTile);
    const float decay = Exp2Approx(own.log2_decay[r]);
    prefix += own.log2_decay[r];
    float within = 0;
#pragma unroll
    for (int s = 0; s < r; ++s) {
      keys[s] *= decay;
      within = fmaf(dscores[s], keys[s], within);
    }
    keys[r] = key_scales[r] * own.k(r);
    const float scale = query_scales[r], others = pairs[r * kPitch], incoming = Exp2Approx(prefix);
    const float from_before = fmaf(incoming, before * products[r * kPitch], within);
    const float gradient = fmaf(incoming, others, fmaf(dscores[r], keys[r], from_before));
    if (r < live) StoreElement(dq, is_wide, scale * gradient);
    dq += step;
    products[r * kPitch] =
        fmaf(ToFloat(Decayed(own.q(r), scale, prefix)), others, scale * own.q(r) * from_before);
  }
  float late = 0;
#pragma unroll
  for (int t = kTile - 1; t >= 0; --t) {
    late += products[t * kPitch];
    products[t * kPitch] = late;
  }
  vectors.late[tile][c] += late;
}

// Completes the gradients of a tile's log decays with what the tile's queries, other tiles and the
// states contribute. A decay of 0 has a gradient of exactly 0.
template <typename Config>
HL_DEVICE void GradTileDecays(const ChunkGradShared<Config>& smem, int tile,
                              DecayGradients& decays) {
  constexpr int kK = Config::kK;
  const int c = OwnChannel<kK>();
  const ChunkGradVectors<kK>& vectors = *smem.vectors;
  float log2_transition = 0;
  for (int i = 0; i < kTilesPerChunk; ++i) log2_transition += vectors.totals[i][c];
  float others = Exp2Approx(log2_transition) * vectors.through[c];
  for (int later = kTilesPerChunk - 1; later > tile; --later) others += vectors.late[later][c];
  for (int earlier = 0; earlier < tile; ++earlier) others += vectors.early[earlier][c];
  const int first = tile * kTile, live = min(kTile, smem.own->chunk.length - first);
  const float* const queries = smem.products() + first * Config::kPitch + c;
  const bool is_stored = smem.own->dlog_decay.data != nullptr;
  ChannelColumn<float> gradients(smem.own->dlog_decay, first, c);
#pragma unroll 4
  for (int t = 0; t < live; ++t) {
    const float gradient = others + queries[t * Config::kPitch];
    if (is_stored) {
      float* const stored = gradients.Next();
      *stored = decays.IsCut(first + t) ? 0.0f : *stored + gradient;
    } else {
      decays.Add(first + t, gradient);
    }
  }
}

// Computes the gradients of key scales as sums of k dk over all channels, one warp per token.
template <typename Config>
HL_DEVICE void GradChunkKeyScales(const ChunkGradShared<Config>& smem,
                                  const ReverseScanParams& params) {
  const ChunkOfHead& own = *smem.own;
#pragma unroll 1
  for (int token = FreshWarpId(); token < own.chunk.length; token += Config::kWarps) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < Config::kK; c += 32)
      sum += smem.pairs()[token * Config::kPitch + c + LaneId()];
    sum = WarpSum(sum);
    if (LaneId() == 0)
      *TokenValue(params.dkey_scale, params.grads.forward, 0, own.chunk, own.head, token) = sum;
  }
}

// ---- the kernel ----

// Computes dv, and for dk: y, D and what pairs in different tiles contribute. Barriers: one per
// slice of V, and one after the last; operands and D are complete; the pairs are complete.
template <typename Config>
HL_DEVICE void KeysOfChunk(const ChunkGradShared<Config>& smem, const ReverseScanParams& params,
                           const ChannelChunks& chunks) {
  const ChunkOfHead& own = *smem.own;
  constexpr int kK = Config::kK, kThreads = Config::kThreads;
  const DecayAttentionArgs& args = params.grads.forward;
  const int dim = args.head_dim_v, group = FreshWarpId() / kTilesPerChunk;
  const int column = group * (kStateBlock / Config::kGroups);
  const int channel = group * (kK / Config::kGroups);
  const auto operand = [&](void* tiles, int columns) {
    bf16* const data = static_cast<bf16*>(tiles) + own.at * kChunk * columns;
    return Rows{reinterpret_cast<char*>(data), columns, columns, /*aligned=*/true, false};
  };
  LoadTile<kK, kThreads>(smem.keys(), operand(chunks.keys, kK), kChunk);
  LoadTile<kChunk, kThreads>(smem.scores(), operand(chunks.scores, kChunk), kChunk);
  float y[Config::kChannelTiles][4], dscores[Config::kColumnTiles][4];
  Clear(y);
  Clear(dscores);
  VisitSlices(
      dim,
      [&](int stage, int first) {
        LoadGradSlice<Config>(smem.SliceOfKeys(stage), params.adjoints, params, own, first);
      },
      [&](int stage, int first) {
        const GradSlice slice = smem.SliceOfKeys(stage);
        GradChunkValues(smem, slice, RowsOf(params.dv, own.chunk, own.head, first + column, dim),
                        column, own.chunk.length);
        AddPairsOfRows(dscores, slice.dout, slice.v, column);
        AddPairsOfRows(y, slice.v, slice.state, channel);
      });
  StoreByChannel<Config>(smem.products(), y, channel);
  StoreScoreGradients<Config>(smem, dscores, column);
  DecayQueries(smem);
  __syncthreads();
  PairsOfKeys(smem, channel);
  __syncthreads();
}
// Computes x, the sums of S R and what pairs in different tiles contribute to dq. Barriers as for
// the keys.
template <typename Config>
HL_DEVICE void QueriesOfChunk(const ChunkGradShared<Config>& smem, const ReverseScanParams& params,
                              bool wants_decays) {
  const ChunkOfHead& own = *smem.own;
  constexpr int kK = Config::kK;
  const int channel = FreshWarpId() / kTilesPerChunk * (kK / Config::kGroups);
  float x[Config::kChannelTiles][4], through = 0;
  Clear(x);
  VisitSlices(
      params.grads.forward.head_dim_v,
      [&](int stage, int first) {
        LoadGradSlice<Config>(smem.SliceOfQueries(stage), params.states, params, own, first);
      },
      [&](int stage, int first) {
        const GradSlice slice = smem.SliceOfQueries(stage);
        AdjointRow adjoint;
        if (wants_decays) LoadAdjointRow<kK>(adjoint, params, own.at, first);
        AddPairsOfRows(x, slice.dout, slice.state, channel);
        if (wants_decays) through += TimesStateRow(adjoint, slice.state);
      });
  through += __shfl_xor_sync(kFullWarp, through, 1);
  if (threadIdx.x % 2 == 0) smem.vectors->through[threadIdx.x / 2] = through;
  StoreByChannel<Config>(smem.products(), x, channel);
  __syncthreads();
  PairsOfQueries(smem, channel);
  __syncthreads();
}

// Describes the block's chunk to all threads, by one thread.
HL_DEVICE void FillChunkOfHead(ChunkOfHead& own, const ReverseScanParams& params, int index,
                               int head) {
  const DecayAttentionArgs& args = params.grads.forward;
  own.index = index;
  own.head = head;
  own.at = blockIdx.x;
  own.chunk = args.chunks[index];
  const int dim = args.head_dim_k;
  const auto operand = [&](const TensorView& view, int heads) {
    return RowsOf(view, own.chunk, SharedHead(head, heads, args.num_heads), 0, dim);
  };
  TensorView decays = args.log_decay;
  if (args.decay_kind == DecayKind::kPerHeadChannel) {
    decays.stride_b = decays.stride_t = 0;
    decays.stride_h = dim;
  }
  own.q = operand(args.q, args.num_q_heads);
  own.k = operand(args.k, args.num_k_heads);
  own.log_decay = operand(decays, args.num_decay_heads);
  const auto channels = [&](const TensorView& gradient) {
    return gradient.data == nullptr ? Rows{} : RowsOf(gradient, own.chunk, head, 0, dim);
  };
  own.dq = channels(params.dq);
  own.dk = channels(params.dk);
  own.dlog_decay = channels(params.dlog_decay);
}
// Stores scale and c of the chunk's tokens; 0 past its end.
template <typename Config>
HL_DEVICE void FillChunkScales(const ChunkGradShared<Config>& smem,
                               const ReverseScanParams& params) {
  const DecayAttentionArgs& args = params.grads.forward;
  const ChunkOfHead& own = *smem.own;
  const int t = static_cast<int>(threadIdx.x);
  if (t >= kChunk) return;
  const bool live = t < own.chunk.length;
  smem.vectors->query_scale[t] =
      live ? QueryScaleAt(args, params.row_scales, own.chunk, t, own.head) : 0.0f;
  smem.vectors->key_scale[t] = live ? KeyScaleAt(args, own.chunk, t, own.head) : 0.0f;
}
// Completes the gradients of decays, and stores the sums over the chunk for a constant decay. The
// barrier: the sums of tiles are complete; for a constant decay, one more.
template <typename Config>
HL_DEVICE void GradChunkDecays(const ChunkGradShared<Config>& smem, const ReverseScanParams& params,
                               DecayGradients& decays) {
  constexpr int kK = Config::kK;
  const int first = 2 * OwnHalf<kK>(), c = OwnChannel<kK>();
  __syncthreads();
#pragma unroll 1
  for (int tile = first; tile < first + 2; ++tile) GradTileDecays(smem, tile, decays);
  if (params.dlambda == nullptr) return;
  float* const constants = smem.pairs();
  if (first > 0) constants[c] = decays.constant;
  __syncthreads();
  const int64_t row =
      int64_t{1} * smem.own->head * params.grads.forward.num_chunks + smem.own->index;
  if (first == 0) params.dlambda[row * kK + c] = decays.constant + constants[c];
}

// The body is empty for other architectures, whose states nothing computes; see
// WarpgroupScanKernel.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    ChannelChunkGradientsKernel([[maybe_unused]] HL_GRID_CONSTANT const ReverseScanParams params,
                                [[maybe_unused]] HL_GRID_CONSTANT const ChannelChunks chunks) {
#if HL_HAS_WGMMA
  HL_DYNAMIC_SMEM(raw);
  const ChunkGradShared<Config> smem = CarveChunkGrad<Config>(raw);
  const int32_t* const sequence_begin =
      params.grads.forward.sequence_begin + params.shape.first_sequence;
  const auto heads = static_cast<unsigned>(params.grads.forward.num_heads);
  const int index = sequence_begin[0] + static_cast<int>(blockIdx.x / heads);
  if (index >= sequence_begin[params.shape.num_sequences]) return;
  if (threadIdx.x == 0)
    FillChunkOfHead(*smem.own, params, index, static_cast<int>(blockIdx.x % heads));
  __syncthreads();
  FillChunkScales(smem, params);
  const bool wants_decays = params.dlog_decay.data != nullptr || params.dlambda != nullptr;
  const bool wants_key_scale = params.dkey_scale.data != nullptr;
  const int first = 2 * OwnHalf<Config::kK>();
  DecayGradients decays = {};
  if (first == 0 && (smem.own->chunk.flags & kChunkResets) != 0) decays.cut = 1;
  KeysOfChunk(smem, params, chunks);
#pragma unroll 1
  for (int tile = first; tile < first + 2; ++tile)
    GradTileKeys(smem, tile, wants_key_scale, decays);
  __syncthreads();  // the arena is free, unless key scales want a gradient
  if (wants_key_scale) {
    GradChunkKeyScales(smem, params);
    __syncthreads();
  }
  QueriesOfChunk(smem, params, wants_decays);
#pragma unroll 1
  for (int tile = first; tile < first + 2; ++tile) GradTileQueries(smem, tile);
  if (wants_decays) GradChunkDecays(smem, params, decays);
#else
  __trap();
#endif
}

template <int kK>
void LaunchChannelChunkGradients(const ReverseScanParams& params, cudaStream_t stream) {
  using Config = ChannelChunkGradConfig<kK>;
  const DecayAttentionArgs& args = params.grads.forward;
  constexpr const char* kName = "decay attention gradients of chunks, decays of channels";
  const int64_t chunk_heads =
      MaxStatesInBatchTile(args, params.shape.num_sequences, /*num_parts=*/1);
  if (chunk_heads == 0) return;
  Launch({GridBlocks(chunk_heads, kName), Config::kThreads, Config::kSmemBytes, kName}, stream,
         ChannelChunkGradientsKernel<Config>, params,
         ChannelChunksOf(args, params.shape, params.operands));
}

}  // namespace halflife::kernels::decay
