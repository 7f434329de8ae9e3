// Gradients of decay attention with one decay factor per token, with Hopper's instructions
// (sm_90a). All chunks are processed in parallel, one per block, from the states that scans have
// stored (warpgroup_states.cuh). One warpgroup does the products. A warp has 16 tokens of every
// product, so sums over channels stay in its registers. Blocks on the same multiprocessor hide each
// other's latency.
//
//   pairs, transposed, [s, r]: scores = k q^T, dscores = v dout^T, weighted in registers
//   dv = c outgoing k R + scores dout,    dk = c outgoing v R^T + dscores q,
//   dq = incoming dout S^T + dscores^T k
//
// R and then S use the same buffer. The gradients of decays follow reverse_scan.cuh: x of the
// queries and y of the keys are computed from dq and dk before the contributions of pairs are
// added.
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | q 2 x [C, 64] 16 | k 16 | v 16 | dout 16 | R, then S 2 x [K, 64] 32 | dscores [r, s] 8
//   | tables 4.3 | sums 2 | = kSmemBytes, of which two fit
#pragma once

#include "kernels/decay_attention/cuda/chunk_states_layout.cuh"
#include "kernels/decay_attention/cuda/warpgroup_tiles.cuh"

namespace halflife::kernels::decay {

constexpr int kGradWarps = 4;  // one warpgroup

struct ChunkGradSums {
  float row[kGradWarps][kChunk];  // as in TokenSums, by warps of 16 keys
  float column[kChunk], diagonal[kChunk], x[kChunk], y[kChunk];
  float through[kGradWarps];
};
static_assert(sizeof(ChunkGradSums) == kChunkGradSumsBytes);

template <int kK_, int kV_>
struct WarpgroupGradConfig {
  static constexpr int kK = kK_, kV = kV_;
  static constexpr int kKeyPieces = kK / kPieceColumns, kValuePieces = kV / kPieceColumns;
  static constexpr int kWarps = kGradWarps, kThreads = 32 * kWarps;
  static constexpr int kMinBlocksPerSm = WarpgroupGradBlocksPerSm(kK, kV);
  static constexpr int kStatePiece = kK * kPieceColumns;  // elements
  static constexpr int kSmemBytes = WarpgroupGradBytes(kK, kV);
};

struct GradientMaps {
  RowsMap q, k, v, dout;
  TensorMap states, adjoints;  // [chunks of the batch tile, H, slices of K and V, kK] rows of kV
};

template <typename Config>
struct WarpgroupGradShared {
  bf16 *q, *k, *v, *dout;  // [kK | kV / 64][64, 64]
  bf16* state;             // [kV / 64][kK, 64]: R, then S
  bf16* dscores;           // [64, 64]
  PairTables* tables;
  ChunkGradSums* sums;
  uint64_t* loaded;  // [3]: tiles, R, S
};
enum Loaded : uint8_t { kTilesLoaded, kAdjointLoaded, kStateLoaded, kNumLoads };

#if HL_HAS_WGMMA

template <typename Config>
HL_DEVICE WarpgroupGradShared<Config> CarveWarpgroupGrad(unsigned char* raw) {
  SmemCarver carver(raw);
  WarpgroupGradShared<Config> smem;
  smem.q = carver.Take<bf16, 1024>(kChunk * Config::kK);
  smem.k = carver.Take<bf16, 1024>(kChunk * Config::kK);
  smem.v = carver.Take<bf16, 1024>(kChunk * Config::kV);
  smem.dout = carver.Take<bf16, 1024>(kChunk * Config::kV);
  smem.state = carver.Take<bf16, 1024>(Config::kK * Config::kV);
  smem.dscores = carver.Take<bf16>(kChunk * kChunk);
  smem.tables = carver.Take<PairTables>(1);
  smem.sums = carver.Take<ChunkGradSums>(1);
  return smem;
}

// The chunk of a block. Only the slices and the head of `block_index` are set.
struct OneChunk {
  ChunkEntry chunk;
  BlockIndex block_index;
  int index;
  bool exists;  // whether it belongs to the batch tile
};
HL_DEVICE OneChunk OneChunkOf(const DecayAttentionArgs& args, const SegmentShape& shape) {
  OneChunk one = {};
  unsigned index = blockIdx.x;
  const auto next = [&](int count) {
    const unsigned of = index % static_cast<unsigned>(count);
    index /= static_cast<unsigned>(count);
    return static_cast<int>(of);
  };
  one.block_index.slice = next(shape.num_slices);
  one.block_index.key_slice = next(shape.num_key_slices);
  one.block_index.head = next(args.num_heads);
  one.index = args.sequence_begin[shape.first_sequence] + static_cast<int>(index);
  one.exists = one.index < args.sequence_begin[shape.first_sequence + shape.num_sequences];
  if (one.exists) one.chunk = args.chunks[one.index];
  return one;
}

// Loads all of the chunk's rows, by one thread.
template <typename Config>
HL_DEVICE void LoadGradChunk(const WarpgroupGradShared<Config>& smem,
                             const ReverseScanParams& params, const GradientMaps& maps,
                             const OneChunk& one) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const DecayAttentionArgs& args = params.grads.forward;
  const BlockIndex& block_index = one.block_index;
  const int key = block_index.key_slice * kK, value = block_index.slice * kV;
  const auto column = [&](const TensorView& view, int heads, int first) {
    return static_cast<int>(SharedHead(block_index.head, heads, args.num_heads) * view.stride_h) +
           first;
  };
  uint64_t* const tiles = smem.loaded + kTilesLoaded;
  MbarrierArriveExpectTx(tiles, 2 * 2 * kChunk * (kK + kV));
  LoadPieces(smem.k, kK, kPieceElements, maps.k.map, tiles, column(args.k, args.num_k_heads, key),
             MapRow(maps.k, one.chunk));
  LoadPieces(smem.q, kK, kPieceElements, maps.q.map, tiles, column(args.q, args.num_q_heads, key),
             MapRow(maps.q, one.chunk));
  LoadPieces(smem.v, kV, kPieceElements, maps.v.map, tiles, column(args.v, args.num_v_heads, value),
             MapRow(maps.v, one.chunk));
  LoadPieces(smem.dout, kV, kPieceElements, maps.dout.map, tiles,
             column(params.grads.dout, args.num_heads, value), MapRow(maps.dout, one.chunk));
}
template <typename Config>
HL_DEVICE void LoadGradState(const WarpgroupGradShared<Config>& smem, const TensorMap& map,
                             Loaded which, int64_t slot) {
  uint64_t* const barrier = smem.loaded + which;
  MbarrierArriveExpectTx(barrier, 2 * Config::kK * Config::kV);
  LoadPieces(smem.state, Config::kV, Config::kStatePiece, map, barrier, 0,
             static_cast<int>(slot * Config::kK));
}

// ---- products: a warp has tokens 16 w .. 16 w + 15 of each ----

using Fragments = uint32_t[kChunk / 16][4];
template <int kPieces>
using TokenTile = float[kPieces][kChunk / 8][4];

template <int kPieces>
HL_DEVICE void FencePieces(TokenTile<kPieces>& acc) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) FenceRegisters(TileOf(acc[piece]));
}
template <int kPieces>
HL_DEVICE void FinishProduct(TokenTile<kPieces>& acc) {
  WgmmaCommit();
  WgmmaWait<0>();
  FencePieces<kPieces>(acc);
}

// acc = x state^T: x [64, kV], state [kK, kV].
template <typename Config>
HL_DEVICE void TimesStateOfKeys(TokenTile<Config::kKeyPieces>& acc, const bf16* x,
                                const bf16* state) {
#pragma unroll
  for (int piece = 0; piece < Config::kKeyPieces; ++piece) Clear(acc[piece]);
  FencePieces<Config::kKeyPieces>(acc);
  WgmmaFence();
#pragma unroll
  for (int j = 0; j < Config::kV / 16; ++j) {
    const uint64_t a = TileDescriptor(x + j / 4 * kPieceElements);
    const uint64_t b = TileDescriptor(state + j / 4 * Config::kStatePiece);
#pragma unroll
    for (int piece = 0; piece < Config::kKeyPieces; ++piece)
      WgmmaM64N64K16(TileOf(acc[piece]), AdvanceTile(a, 32 * (j % 4)),
                     AdvanceTile(b, 128 * kPieceColumns * piece + 32 * (j % 4)));
  }
  FinishProduct<Config::kKeyPieces>(acc);
}
// acc += rows x: the warp's rows [16, 16 kSteps], x [16 kSteps, 64 kPieces] in pieces of
// `piece_elements`.
template <int kPieces, int kSteps>
HL_DEVICE void AddProduct(TokenTile<kPieces>& acc, uint32_t (&rows)[kSteps][4], const bf16* x,
                          int piece_elements) {
  FencePieces<kPieces>(acc);
  FenceOperands(rows);
  WgmmaFence();
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const uint64_t b = TileDescriptor(x + piece * piece_elements);
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
      WgmmaM64N64K16OfRows(TileOf(acc[piece]), rows[j], AdvanceTile(b, 128 * 16 * j));
  }
  FinishProduct<kPieces>(acc);
  KeepRegisters(rows);
}
// acc = k state.
template <typename Config>
HL_DEVICE void TimesStateOfValues(TokenTile<Config::kValuePieces>& acc, const bf16* k,
                                  const bf16* state) {
  const int rows = RowsFirst<kPieceColumns>(FreshLaneId());
  uint32_t a[Config::kK / 16][4];
#pragma unroll
  for (int j = 0; j < Config::kK / 16; ++j)
    LoadFragment<kPieceColumns, false>(a[j], k + j / 4 * kPieceElements, rows, WarpId() * 16,
                                       16 * (j % 4));
#pragma unroll
  for (int piece = 0; piece < Config::kValuePieces; ++piece) Clear(acc[piece]);
  AddProduct<Config::kValuePieces>(acc, a, state, Config::kStatePiece);
}

// Multiplies the warp's rows, g and g + 8 of a lane, by their tokens' factors.
template <int kPieces>
HL_DEVICE void ScaleTokens(TokenTile<kPieces>& acc, const float* factor) {
  const int token = WarpId() * 16 + FreshLaneId() / 4;
  const float top = factor[token], bottom = factor[token + 8];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int n = 0; n < kChunk / 8; ++n) {
      acc[piece][n][0] *= top;
      acc[piece][n][1] *= top;
      acc[piece][n][2] *= bottom;
      acc[piece][n][3] *= bottom;
    }
  }
}
// sums[t] = sum over channels of acc[t, .] x[t, .]; x is the chunk's tile, in pieces.
template <int kPieces>
HL_DEVICE void SumChannels(float* sums, const TokenTile<kPieces>& acc, const bf16* x) {
  const int lane = FreshLaneId(), token = WarpId() * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n) {
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(
            x + piece * kPieceElements +
            TileOffset<kPieceColumns>(token + 8 * half, 8 * n + lane % 4 * 2));
        sum = fmaf(acc[piece][n][2 * half], UnpackLo(pair), sum);
        sum = fmaf(acc[piece][n][2 * half + 1], UnpackHi(pair), sum);
      }
    }
    sum = RowSum(sum);
    if (lane % 4 == 0) sums[token + 8 * half] = sum;
  }
}

// Stores the warp's tokens of a gradient, for all columns of the block's slice, in units of 16
// bytes.
template <int kPieces>
HL_DEVICE void StoreTokenRows(const TokenTile<kPieces>& acc, const Rows& rows, int length) {
  const int lane = FreshLaneId();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = WarpId() * 16 + lane / 4 + 8 * half;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int n = 0; n < kChunk / 8; n += 4) {
        const float(*const d)[4] = acc[piece] + n;
        const int64_t first = token * rows.stride_t + piece * kPieceColumns + 8 * n;
        if (rows.is_wide) {
          if (token >= length) continue;
#pragma unroll
          for (int i = 0; i < 4; ++i)
            *reinterpret_cast<float2*>(reinterpret_cast<float*>(rows.data) + first + 8 * i +
                                       lane % 4 * 2) =
                make_float2(d[i][2 * half], d[i][2 * half + 1]);
          continue;
        }
        const uint4 values = RowOfQuad(d, half);  // executed by all lanes
        if (token < length)
          *reinterpret_cast<uint4*>(reinterpret_cast<bf16*>(rows.data) + first + lane % 4 * 8) =
              values;
      }
    }
  }
}

// ---- pairs ----

// From the products k q^T and v dout^T of the warp's keys, computes scores and dscores as
// fragments, dscores transposed in shared memory, and the sums for gradients of decays.
template <typename Config>
HL_DEVICE void WeighPairs(const WarpgroupGradShared<Config>& smem, const float (&products)[8][4],
                          const float (&gradients)[8][4], Fragments& scores, Fragments& dscores,
                          bool wants_sums) {
  const PairTables& tables = *smem.tables;
  const int lane = FreshLaneId(), warp = FreshWarpId();
  const int g = lane / 4;
  float column_sums[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < kChunk / 8; ++n) {  // queries 8 n .. 8 n + 7: one base block
    const int r = 8 * n + lane % 4 * 2;
    float row_sums[2] = {0, 0};
    float x[2][2], dx[2][2];  // [half][i]: weighted, with c
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int s = 16 * warp + 8 * half + g, block = 2 * warp + half;
      const float c = tables.key_scale[s];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float weight = PairWeight(tables, r + i, n, s, block) * tables.query_scale[r + i];
        const bool sees = s <= r + i;
        const float score = sees ? products[n][2 * half + i] * weight : 0.0f;
        const float gradient = sees ? gradients[n][2 * half + i] : 0.0f;
        x[half][i] = sees ? score * c : 0.0f;
        dx[half][i] = sees ? gradient * weight * c : 0.0f;
        if (!wants_sums) continue;
        const float product = score * gradient;
        if (s == r + i) smem.sums->diagonal[s] = product;
        const float below = s < r + i ? product : 0.0f;
        column_sums[half] += below;
        row_sums[i] += s < r + i ? below * c : 0.0f;
      }
      const int register_of = 2 * (n % 2) + half;
      scores[n / 2][register_of] = PackBf16(x[half][0], x[half][1]);
      dscores[n / 2][register_of] = PackBf16(dx[half][0], dx[half][1]);
      // Lanes of keys s & ~1 and + 1 exchange values: each then has both keys for one query.
      const float2 keys = TransposePair(dx[half][0], dx[half][1]);
      *reinterpret_cast<uint32_t*>(smem.dscores + TileOffset<kChunk>(r + g % 2, s - g % 2)) =
          PackBf16(keys.x, keys.y);
    }
    if (!wants_sums) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = ColumnSum(row_sums[i]);
      if (g == 0) smem.sums->row[warp][r + i] = sum;
    }
  }
  if (!wants_sums) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = RowSum(column_sums[half]);
    if (lane % 4 == 0) smem.sums->column[16 * warp + 8 * half + g] = sum;
  }
}

// Sums S R, where S is read from global memory.
template <typename Config>
HL_DEVICE void SumThrough(const WarpgroupGradShared<Config>& smem, const bf16* state) {
  constexpr int kUnits = Config::kV / 8;
  float sum = 0;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < Config::kK * kUnits; i += Config::kThreads) {
    const int row = i / kUnits, unit = i % kUnits;
    const uint4 s = *reinterpret_cast<const uint4*>(state + 8 * i);
    const uint4 r = *reinterpret_cast<const uint4*>(smem.state + unit / 8 * Config::kStatePiece +
                                                    TileOffset<kPieceColumns>(row, unit % 8 * 8));
    const uint32_t of_s[4] = {s.x, s.y, s.z, s.w}, of_r[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sum = fmaf(UnpackLo(of_s[j]), UnpackLo(of_r[j]), sum);
      sum = fmaf(UnpackHi(of_s[j]), UnpackHi(of_r[j]), sum);
    }
  }
  sum = WarpSum(sum);
  if (LaneId() == 0) smem.sums->through[WarpId()] = sum;
}

template <typename Config>
HL_DEVICE void FinishChunkGradients(const WarpgroupGradShared<Config>& smem,
                                    const ReverseScanParams& params, const OneChunk& one) {
  const ChunkGradSums& sums = *smem.sums;
  const auto sums_of = [&](int r) {
    TokenSums token = {0, sums.column[r], sums.diagonal[r], sums.x[r], sums.y[r]};
#pragma unroll
    for (int w = 0; w < kGradWarps; ++w) token.row += sums.row[w][r];
    return token;
  };
  float through = 0;
#pragma unroll
  for (int w = 0; w < kGradWarps; ++w) through += sums.through[w];
  const float constant =
      FinishDecays(sums_of, through, *smem.tables, params, one.chunk, one.block_index);
  if (params.dlambda == nullptr || LaneId() != 0) return;
  const DecayAttentionArgs& args = params.grads.forward;
  const int64_t head =
      int64_t{1} * PartOf(params, one.block_index) * args.num_heads + one.block_index.head;
  params.dlambda[head * args.num_chunks + one.index] = constant;
}

// Barriers: (1) only for a short chunk: rows beyond its end are cleared; (2) R is no longer used
// and dscores are complete; (3) the sums are complete.
template <typename Config>
HL_DEVICE void ChunkGradients(const WarpgroupGradShared<Config>& smem,
                              const ReverseScanParams& params, const GradientMaps& maps,
                              const OneChunk& one) {
  constexpr int kK = Config::kK, kV = Config::kV;
  constexpr int kKeyPieces = Config::kKeyPieces, kValuePieces = Config::kValuePieces;
  const DecayAttentionArgs& args = params.grads.forward;
  const int thread = static_cast<int>(threadIdx.x), length = one.chunk.length;
  const bool wants_sums = params.dlog_decay.data != nullptr || params.dlambda != nullptr ||
                          params.dkey_scale.data != nullptr;
  const int64_t slot =
      StateSlot(params, PartOf(params, one.block_index), one.block_index.head, one.index);
  MbarrierWait(smem.loaded + kTilesLoaded, 0);
  if (length < kChunk) {
    ClearRows(smem.q, kK, length, thread, Config::kThreads);
    ClearRows(smem.k, kK, length, thread, Config::kThreads);
    ClearRows(smem.v, kV, length, thread, Config::kThreads);
    ClearRows(smem.dout, kV, length, thread, Config::kThreads);
    FenceProxyAsync();
    __syncthreads();
  }
  Fragments scores, dscores;
  {
    float products[kChunk / 8][4], gradients[kChunk / 8][4];
    Clear(products);
    Clear(gradients);
    FenceRegisters(TileOf(products));
    FenceRegisters(TileOf(gradients));
    WgmmaFence();
    BeginPairs<kK>(products, smem.k, smem.q);
    BeginPairs<kV>(gradients, smem.v, smem.dout);
    WgmmaCommit();
    WgmmaWait<0>();
    FenceRegisters(TileOf(products));
    FenceRegisters(TileOf(gradients));
    WeighPairs(smem, products, gradients, scores, dscores, wants_sums);
  }
  TokenTile<kValuePieces> dv;
  TokenTile<kKeyPieces> dk;
  MbarrierWait(smem.loaded + kAdjointLoaded, 0);
  TimesStateOfValues<Config>(dv, smem.k, smem.state);
  ScaleTokens<kValuePieces>(dv, smem.tables->outgoing_scaled);
  AddProduct<kValuePieces>(dv, scores, smem.dout, kPieceElements);
  TimesStateOfKeys<Config>(dk, smem.v, smem.state);
  if (wants_sums) SumThrough(smem, static_cast<const bf16*>(params.states) + slot * (kK * kV));
  __syncthreads();
  if (thread == 0) LoadGradState(smem, maps.states, kStateLoaded, slot);
  ScaleTokens<kKeyPieces>(dk, smem.tables->outgoing);
  if (wants_sums) SumChannels<kKeyPieces>(smem.sums->y, dk, smem.k);
  ScaleTokens<kKeyPieces>(dk, smem.tables->key_scale);
  AddProduct<kKeyPieces>(dk, dscores, smem.q, kPieceElements);
  const auto rows_of_keys = [&](const TensorView& gradient) {
    return RowsOf(SliceOf(gradient, args, one.block_index.slice, args.head_dim_k), one.chunk,
                  one.block_index.head, one.block_index.key_slice * kK, args.head_dim_k);
  };
  StoreTokenRows<kValuePieces>(
      dv,
      RowsOf(SliceOf(params.dv, args, one.block_index.key_slice, args.head_dim_v), one.chunk,
             one.block_index.head, one.block_index.slice * kV, args.head_dim_v),
      length);
  StoreTokenRows<kKeyPieces>(dk, rows_of_keys(params.dk), length);
  {
    TokenTile<kKeyPieces> dq;
    MbarrierWait(smem.loaded + kStateLoaded, 0);
    TimesStateOfKeys<Config>(dq, smem.dout, smem.state);
    ScaleTokens<kKeyPieces>(dq, smem.tables->incoming);
    if (wants_sums) SumChannels<kKeyPieces>(smem.sums->x, dq, smem.q);
    const int rows = RowsFirst<kChunk>(FreshLaneId());
#pragma unroll
    for (int j = 0; j < kChunk / 16; ++j)
      LoadFragment<kChunk, false>(dscores[j], smem.dscores, rows, WarpId() * 16, 16 * j);
    AddProduct<kKeyPieces>(dq, dscores, smem.k, kPieceElements);
    StoreTokenRows<kKeyPieces>(dq, rows_of_keys(params.dq), length);
  }
  if (!wants_sums) return;
  __syncthreads();
  if (WarpId() == 0) FinishChunkGradients(smem, params, one);
}

#endif  // HL_HAS_WGMMA

// The body is empty for other architectures; see WarpgroupScanKernel.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kMinBlocksPerSm)
    WarpgroupGradientsKernel([[maybe_unused]] HL_GRID_CONSTANT const ReverseScanParams params,
                             [[maybe_unused]] HL_GRID_CONSTANT const GradientMaps maps) {
#if HL_HAS_WGMMA
  HL_DYNAMIC_SMEM(raw);
  HL_SHARED(loaded, uint64_t[kNumLoads]);
  WarpgroupGradShared<Config> smem = CarveWarpgroupGrad<Config>(raw);
  smem.loaded = loaded;
  const DecayAttentionArgs& args = params.grads.forward;
  const OneChunk one = OneChunkOf(args, params.shape);
  if (!one.exists) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kNumLoads; ++i) MbarrierInit(loaded + i, 1);
    MbarrierInitFence();
    LoadGradChunk(smem, params, maps, one);
    LoadGradState(
        smem, maps.adjoints, kAdjointLoaded,
        StateSlot(params, PartOf(params, one.block_index), one.block_index.head, one.index));
  }
  if (WarpId() == 1) {
    FillDecayTables(*smem.tables, args, one.chunk, one.block_index.head, params.row_scales);
    FillNearWeights(*smem.tables);
  }
  __syncthreads();
  ChunkGradients(smem, params, maps, one);
#else
  __trap();
#endif
}

template <int kK, int kV>
void LaunchWarpgroupGradients(const ReverseScanParams& params, cudaStream_t stream) {
  using Config = WarpgroupGradConfig<kK, kV>;
  const DecayAttentionArgs& args = params.grads.forward;
  const auto map = [&](const TensorView& view, int heads, int dim, const char* name) {
    return MapOfRows(view, args, params.shape, heads, dim, name);
  };
  const int64_t num_states =
      MaxStatesInBatchTile(args, params.shape.num_sequences, params.shape.num_parts());
  if (num_states == 0) return;
  const GradientMaps maps = {map(args.q, args.num_q_heads, args.head_dim_k, "q"),
                             map(args.k, args.num_k_heads, args.head_dim_k, "k"),
                             map(args.v, args.num_v_heads, args.head_dim_v, "v"),
                             map(params.grads.dout, args.num_heads, args.head_dim_v, "dout"),
                             MapOfTiles(params.states, num_states, kK, kV, "states"),
                             MapOfTiles(params.adjoints, num_states, kK, kV, "adjoints")};
  Launch({static_cast<unsigned>(num_states), Config::kThreads, Config::kSmemBytes,
          "decay attention gradients by warpgroups"},
         stream, WarpgroupGradientsKernel<Config>, params, maps);
}

}  // namespace halflife::kernels::decay
