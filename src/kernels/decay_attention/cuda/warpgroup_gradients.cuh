// Gradients of decay attention with one decay factor per token, with Hopper's instructions
// (sm_90a). Each block processes one chunk of one head and one slice of K, in parallel with all
// others, from the states that scans have stored (warpgroup_states.cuh). One warpgroup does the
// products. A warp has 16 tokens of every product, so sums over channels stay in its registers.
// Blocks on the same multiprocessor hide each other's latency.
//
//   pairs, transposed, [s, r]: scores = k q^T, dscores = v dout^T, weighted in registers
//   dv = c outgoing k R + scores dout,    dk = c outgoing v R^T + dscores q,
//   dq = incoming dout S^T + dscores^T k
//
// A block visits V twice: for dscores, kV columns of v and dout at a time, and then for everything
// else, 64 columns of R and S at a time. The second visit starts with the columns that the first
// has left in shared memory, so v and dout are read once if V is kV. dq and dk are summed over V in
// registers.
//
// The gradients of decays follow reverse_scan.cuh: x of the queries and y of the keys are computed
// from dq and dk before the contributions of pairs are added.
//
// Shared memory in KiB, K = V = 128, C = 64:
//   | q 2 x [C, 64] 16 | k 16 | v 16 | dout 16 | R [K, 64] 16 | S 16 | dscores [r, s] 8
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
  // kV is the number of columns of v and dout in shared memory.
  static constexpr int kK = kK_, kV = kV_;
  static constexpr int kKeyPieces = kK / kPieceColumns, kValuePieces = kV / kPieceColumns;
  static constexpr int kWarps = kGradWarps, kThreads = 32 * kWarps;
  static constexpr int kMinBlocksPerSm = WarpgroupGradBlocksPerSm(kK, kV);
  static constexpr int kSmemBytes = WarpgroupGradBytes(kK, kV);
};

struct GradientMaps {
  RowsMap q, k, v, dout;
  TensorMap states, adjoints;  // [chunks of the batch tile, H, slices of K and V, kK] rows of kV
};

template <typename Config>
struct WarpgroupGradShared {
  bf16 *q, *k, *v, *dout;  // [kK | kV / 64][64, 64]
  bf16 *adjoint, *state;   // R and S [kK, 64]
  bf16* dscores;           // [64, 64]
  PairTables* tables;
  ChunkGradSums* sums;
  uint64_t* loaded;  // [kNumLoads]
};
enum Loaded : uint8_t { kKeysLoaded, kValuesLoaded, kStatesLoaded, kNumLoads };

#if HL_HAS_WGMMA

template <typename Config>
HL_DEVICE WarpgroupGradShared<Config> CarveWarpgroupGrad(unsigned char* raw) {
  SmemCarver carver(raw);
  WarpgroupGradShared<Config> smem;
  smem.q = carver.Take<bf16, 1024>(kChunk * Config::kK);
  smem.k = carver.Take<bf16, 1024>(kChunk * Config::kK);
  smem.v = carver.Take<bf16, 1024>(kChunk * Config::kV);
  smem.dout = carver.Take<bf16, 1024>(kChunk * Config::kV);
  smem.adjoint = carver.Take<bf16, 1024>(Config::kK * kPieceColumns);
  smem.state = carver.Take<bf16, 1024>(Config::kK * kPieceColumns);
  smem.dscores = carver.Take<bf16>(kChunk * kChunk);
  smem.tables = carver.Take<PairTables>(1);
  smem.sums = carver.Take<ChunkGradSums>(1);
  return smem;
}

// The part of the problem that a block owns.
struct OneChunk {
  ChunkEntry chunk;
  int index, head, key_slice;
  bool exists;  // whether the chunk belongs to the batch tile
};
HL_DEVICE OneChunk OneChunkOf(const DecayAttentionArgs& args, const SegmentShape& shape) {
  OneChunk one = {};
  unsigned index = blockIdx.x;
  const auto next = [&](int count) {
    const unsigned of = index % static_cast<unsigned>(count);
    index /= static_cast<unsigned>(count);
    return static_cast<int>(of);
  };
  one.key_slice = next(shape.num_key_slices);
  one.head = next(args.num_heads);
  one.index = args.sequence_begin[shape.first_sequence] + static_cast<int>(index);
  one.exists = one.index < args.sequence_begin[shape.first_sequence + shape.num_sequences];
  if (one.exists) one.chunk = args.chunks[one.index];
  return one;
}

// ---- loads, by one thread ----

// Returns the column of the matrix of rows at which columns of a head start.
HL_DEVICE int ColumnOf(const TensorView& view, int heads, const DecayAttentionArgs& args, int head,
                       int first) {
  return static_cast<int>(SharedHead(head, heads, args.num_heads) * view.stride_h) + first;
}
template <typename Config>
HL_DEVICE void LoadKeys(const WarpgroupGradShared<Config>& smem, const DecayAttentionArgs& args,
                        const GradientMaps& maps, const OneChunk& one) {
  constexpr int kK = Config::kK;
  const int first = one.key_slice * kK;
  uint64_t* const barrier = smem.loaded + kKeysLoaded;
  MbarrierArriveExpectTx(barrier, 2 * 2 * kChunk * kK);
  LoadPieces(smem.k, kK, kPieceElements, maps.k.map, barrier,
             ColumnOf(args.k, args.num_k_heads, args, one.head, first), MapRow(maps.k, one.chunk));
  LoadPieces(smem.q, kK, kPieceElements, maps.q.map, barrier,
             ColumnOf(args.q, args.num_q_heads, args, one.head, first), MapRow(maps.q, one.chunk));
}
// Loads kV columns of v and dout.
template <typename Config>
HL_DEVICE void LoadValues(const WarpgroupGradShared<Config>& smem, const ReverseScanParams& params,
                          const GradientMaps& maps, const OneChunk& one, int slice) {
  constexpr int kV = Config::kV;
  const DecayAttentionArgs& args = params.grads.forward;
  uint64_t* const barrier = smem.loaded + kValuesLoaded;
  MbarrierArriveExpectTx(barrier, 2 * 2 * kChunk * kV);
  LoadPieces(smem.v, kV, kPieceElements, maps.v.map, barrier,
             ColumnOf(args.v, args.num_v_heads, args, one.head, slice * kV),
             MapRow(maps.v, one.chunk));
  LoadPieces(smem.dout, kV, kPieceElements, maps.dout.map, barrier,
             ColumnOf(params.grads.dout, args.num_heads, args, one.head, slice * kV),
             MapRow(maps.dout, one.chunk));
}
// Loads 64 columns of R and S.
template <typename Config>
HL_DEVICE void LoadStates(const WarpgroupGradShared<Config>& smem, const ReverseScanParams& params,
                          const GradientMaps& maps, const OneChunk& one, int slice, int piece) {
  constexpr int kK = Config::kK;
  const int part = one.key_slice * params.shape.num_slices + slice;
  const int row = static_cast<int>(StateSlot(params, part, one.head, one.index) * kK);
  uint64_t* const barrier = smem.loaded + kStatesLoaded;
  MbarrierArriveExpectTx(barrier, 2 * 2 * kK * kPieceColumns);
  TmaLoad2d(smem.adjoint, &maps.adjoints, barrier, piece * kPieceColumns, row);
  TmaLoad2d(smem.state, &maps.states, barrier, piece * kPieceColumns, row);
}
// Waits for load `number` of v and dout, counted from 0, and clears the rows after the chunk's end.
template <typename Config>
HL_DEVICE void AwaitValues(const WarpgroupGradShared<Config>& smem, int number, int length) {
  MbarrierWait(smem.loaded + kValuesLoaded, number % 2);
  if (length == kChunk) return;
  const int thread = static_cast<int>(threadIdx.x);
  ClearRows(smem.v, Config::kV, length, thread, Config::kThreads);
  ClearRows(smem.dout, Config::kV, length, thread, Config::kThreads);
  FenceProxyAsync();
  __syncthreads();
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

// Issues acc += x state^T: x [64, 64], state [kK, 64].
template <int kPieces>
HL_DEVICE void IssueTimesState(TokenTile<kPieces>& acc, const bf16* x, const bf16* state) {
  const uint64_t a = TileDescriptor(x), b = TileDescriptor(state);
#pragma unroll
  for (int j = 0; j < kPieceColumns / 16; ++j) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
      WgmmaM64N64K16(TileOf(acc[piece]), AdvanceTile(a, 32 * j),
                     AdvanceTile(b, 128 * kPieceColumns * piece + 32 * j));
  }
}
// acc += rows x: the warp's rows [16, 64], x [64, 64 kPieces].
template <int kPieces>
HL_DEVICE void AddProduct(TokenTile<kPieces>& acc, Fragments& rows, const bf16* x) {
  FencePieces<kPieces>(acc);
  FenceOperands(rows);
  WgmmaFence();
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece)
    IssueTimes(acc[piece], rows, x + piece * kPieceElements);
  FinishProduct<kPieces>(acc);
  KeepRegisters(rows);
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

// From the products k q^T and v dout^T of the warp's keys, computes scores as fragments, dscores
// transposed in shared memory, and the sums for gradients of decays.
template <typename Config>
HL_DEVICE void WeighPairs(const WarpgroupGradShared<Config>& smem, const float (&products)[8][4],
                          const float (&gradients)[8][4], Fragments& scores, bool wants_sums) {
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
      scores[n / 2][2 * (n % 2) + half] = PackBf16(x[half][0], x[half][1]);
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

// Visits V for the first time and computes scores and dscores. It has barriers only for a short
// chunk and between slices of V.
template <typename Config>
HL_DEVICE void ComputePairs(const WarpgroupGradShared<Config>& smem,
                            const ReverseScanParams& params, const GradientMaps& maps,
                            const OneChunk& one, Fragments& scores, bool wants_sums) {
  constexpr int kK = Config::kK, kV = Config::kV;
  const int thread = static_cast<int>(threadIdx.x), length = one.chunk.length;
  float products[kChunk / 8][4], gradients[kChunk / 8][4];
  Clear(products);
  Clear(gradients);
  MbarrierWait(smem.loaded + kKeysLoaded, 0);
  if (length < kChunk) {  // AwaitValues fences and synchronises
    ClearRows(smem.q, kK, length, thread, Config::kThreads);
    ClearRows(smem.k, kK, length, thread, Config::kThreads);
  }
  AwaitValues(smem, 0, length);
  FenceRegisters(TileOf(products));
  FenceRegisters(TileOf(gradients));
  WgmmaFence();
  BeginPairs<kK>(products, smem.k, smem.q);
  BeginPairs<kV>(gradients, smem.v, smem.dout);
  WgmmaCommit();
  WgmmaWait<0>();
  FenceRegisters(TileOf(products));
  FenceRegisters(TileOf(gradients));
#pragma unroll 1
  for (int slice = 1; slice < params.shape.num_slices; ++slice) {
    __syncthreads();
    if (thread == 0) LoadValues(smem, params, maps, one, slice);
    AwaitValues(smem, slice, length);
    FenceRegisters(TileOf(gradients));
    WgmmaFence();
    BeginPairs<kV>(gradients, smem.v, smem.dout);
    WgmmaCommit();
    WgmmaWait<0>();
    FenceRegisters(TileOf(gradients));
  }
  WeighPairs(smem, products, gradients, scores, wants_sums);
}

// ---- states ----

// For 64 columns of V: dk += v R^T, dq += dout S^T, dv = k R.
template <typename Config>
HL_DEVICE void TimesStates(TokenTile<Config::kKeyPieces>& dk, TokenTile<Config::kKeyPieces>& dq,
                           TokenTile<1>& dv, const WarpgroupGradShared<Config>& smem, const bf16* v,
                           const bf16* dout) {
  constexpr int kPieces = Config::kKeyPieces, kSteps = Config::kK / 16;
  const int rows = RowsFirst<kPieceColumns>(FreshLaneId());
  uint32_t keys[kSteps][4];
#pragma unroll
  for (int j = 0; j < kSteps; ++j)
    LoadFragment<kPieceColumns, false>(keys[j], smem.k + j / 4 * kPieceElements, rows,
                                       WarpId() * 16, 16 * (j % 4));
  Clear(dv[0]);
  FencePieces<kPieces>(dk);
  FencePieces<kPieces>(dq);
  FencePieces<1>(dv);
  FenceOperands(keys);
  WgmmaFence();
  IssueTimesState<kPieces>(dk, v, smem.adjoint);
  IssueTimesState<kPieces>(dq, dout, smem.state);
  const uint64_t adjoint = TileDescriptor(smem.adjoint);
#pragma unroll
  for (int j = 0; j < kSteps; ++j)
    WgmmaM64N64K16OfRows(TileOf(dv[0]), keys[j], AdvanceTile(adjoint, 128 * 16 * j));
  WgmmaCommit();
  WgmmaWait<0>();
  FencePieces<kPieces>(dk);
  FencePieces<kPieces>(dq);
  FencePieces<1>(dv);
  KeepRegisters(keys);
}
// Returns a thread's share of the sum of S R.
template <typename Config>
HL_DEVICE float TimesAdjoint(const WarpgroupGradShared<Config>& smem) {
  constexpr int kUnits = kPieceColumns / 8;
  float sum = 0;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < Config::kK * kUnits; i += Config::kThreads) {
    const uint4 s = *reinterpret_cast<const uint4*>(smem.state + 8 * i);
    const uint4 r = *reinterpret_cast<const uint4*>(smem.adjoint + 8 * i);
    const uint32_t of_s[4] = {s.x, s.y, s.z, s.w}, of_r[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sum = fmaf(UnpackLo(of_s[j]), UnpackLo(of_r[j]), sum);
      sum = fmaf(UnpackHi(of_s[j]), UnpackHi(of_r[j]), sum);
    }
  }
  return sum;
}

// Visits V for the second time: stores dv, and computes what states contribute to dk and dq,
// without the factors of tokens. The barrier after 64 columns separates the uses of R and S, and of
// v and dout, from the loads of the next ones. It also completes dscores.
template <typename Config>
HL_DEVICE void VisitStates(TokenTile<Config::kKeyPieces>& dk, TokenTile<Config::kKeyPieces>& dq,
                           const WarpgroupGradShared<Config>& smem, const ReverseScanParams& params,
                           const GradientMaps& maps, const OneChunk& one, Fragments& scores,
                           bool wants_sums) {
  constexpr int kV = Config::kV, kPieces = Config::kValuePieces;
  const DecayAttentionArgs& args = params.grads.forward;
  const int num_slices = params.shape.num_slices;
  const TensorView values = SliceOf(params.dv, args, one.key_slice, args.head_dim_v);
  float through = 0;
#pragma unroll 1
  for (int i = 0; i < num_slices * kPieces; ++i) {
    const int slice = num_slices - 1 - i / kPieces, piece = i % kPieces;
    if (piece == 0 && i > 0) AwaitValues(smem, num_slices - 1 + i / kPieces, one.chunk.length);
    MbarrierWait(smem.loaded + kStatesLoaded, i % 2);
    const bf16* const dout = smem.dout + piece * kPieceElements;
    TokenTile<1> dv;
    TimesStates<Config>(dk, dq, dv, smem, smem.v + piece * kPieceElements, dout);
    ScaleTokens<1>(dv, smem.tables->outgoing_scaled);
    AddProduct<1>(dv, scores, dout);
    if (wants_sums) through += TimesAdjoint(smem);
    __syncthreads();
    const int next = i + 1, next_slice = num_slices - 1 - next / kPieces;
    if (threadIdx.x == 0 && next_slice >= 0) {
      LoadStates(smem, params, maps, one, next_slice, next % kPieces);
      if (next % kPieces == 0) LoadValues(smem, params, maps, one, next_slice);
    }
    StoreTokenRows<1>(
        dv,
        RowsOf(values, one.chunk, one.head, slice * kV + piece * kPieceColumns, args.head_dim_v),
        one.chunk.length);
  }
  if (!wants_sums) return;
  through = WarpSum(through);
  if (LaneId() == 0) smem.sums->through[WarpId()] = through;
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
  const float constant = FinishDecays(sums_of, through, *smem.tables, params, one.chunk, one.head,
                                      /*part=*/one.key_slice);
  if (params.dlambda == nullptr || LaneId() != 0) return;
  const DecayAttentionArgs& args = params.grads.forward;
  const int64_t head = int64_t{1} * one.key_slice * args.num_heads + one.head;
  params.dlambda[head * args.num_chunks + one.index] = constant;
}

template <typename Config>
HL_DEVICE void ChunkGradients(const WarpgroupGradShared<Config>& smem,
                              const ReverseScanParams& params, const GradientMaps& maps,
                              const OneChunk& one) {
  constexpr int kK = Config::kK, kPieces = Config::kKeyPieces;
  const DecayAttentionArgs& args = params.grads.forward;
  const bool wants_sums = params.dlog_decay.data != nullptr || params.dlambda != nullptr ||
                          params.dkey_scale.data != nullptr;
  Fragments pairs;
  ComputePairs(smem, params, maps, one, pairs, wants_sums);
  TokenTile<kPieces> dk, dq;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    Clear(dk[piece]);
    Clear(dq[piece]);
  }
  VisitStates(dk, dq, smem, params, maps, one, pairs, wants_sums);

  const auto rows_of = [&](const TensorView& gradient) {
    return RowsOf(gradient, one.chunk, one.head, one.key_slice * kK, args.head_dim_k);
  };
  const int lane = FreshLaneId(), tokens = WarpId() * 16;
  ScaleTokens<kPieces>(dk, smem.tables->outgoing);
  if (wants_sums) SumChannels<kPieces>(smem.sums->y, dk, smem.k);
  ScaleTokens<kPieces>(dk, smem.tables->key_scale);
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j)
    LoadFragment<kChunk, true>(pairs[j], smem.dscores, ColumnsFirst<kChunk>(lane), 16 * j, tokens);
  AddProduct<kPieces>(dk, pairs, smem.q);
  StoreTokenRows<kPieces>(dk, rows_of(params.dk), one.chunk.length);

  ScaleTokens<kPieces>(dq, smem.tables->incoming);
  if (wants_sums) SumChannels<kPieces>(smem.sums->x, dq, smem.q);
#pragma unroll
  for (int j = 0; j < kChunk / 16; ++j)
    LoadFragment<kChunk, false>(pairs[j], smem.dscores, RowsFirst<kChunk>(lane), tokens, 16 * j);
  AddProduct<kPieces>(dq, pairs, smem.k);
  StoreTokenRows<kPieces>(dq, rows_of(params.dq), one.chunk.length);
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
    LoadKeys(smem, args, maps, one);
    LoadValues(smem, params, maps, one, /*slice=*/0);
    LoadStates(smem, params, maps, one, params.shape.num_slices - 1, /*piece=*/0);
  }
  if (WarpId() == 1) {
    FillDecayTables(*smem.tables, args, one.chunk, one.head, params.row_scales);
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
  const int64_t blocks = MaxStatesInBatchTile(args, params.shape.num_sequences,
                                              /*num_parts=*/params.shape.num_key_slices);
  const int64_t num_states = blocks * params.shape.num_slices;
  if (blocks == 0) return;
  const GradientMaps maps = {map(args.q, args.num_q_heads, args.head_dim_k, "q"),
                             map(args.k, args.num_k_heads, args.head_dim_k, "k"),
                             map(args.v, args.num_v_heads, args.head_dim_v, "v"),
                             map(params.grads.dout, args.num_heads, args.head_dim_v, "dout"),
                             MapOfTiles(params.states, num_states, kK, kV, "states"),
                             MapOfTiles(params.adjoints, num_states, kK, kV, "adjoints")};
  Launch({static_cast<unsigned>(blocks), Config::kThreads, Config::kSmemBytes,
          "decay attention gradients by warpgroups"},
         stream, WarpgroupGradientsKernel<Config>, params, maps);
}

}  // namespace halflife::kernels::decay
