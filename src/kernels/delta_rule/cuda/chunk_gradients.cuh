// The gradients of one chunk and value head, from the states before it, the gradients of the states
// after it, and dU (see backward.h). All chunks are independent.
//
// A block treats K in slices of at most 128 channels, one after another. It has eight warps: warp w
// owns rows 16 (w % 4) .. + 15, and half w / 4 of the columns. In the first part, it sums over V,
// 64 columns at a time, in accumulators:
//
//   D = dout u^T   F = Lambda u^T   dout S^T   Lambda S^T   u R^T        with Lambda = X^T dU
//
// In the second part, it adds the pairs of tokens in the chunk: token_pairs.cuh for one decay per
// token, channel_pairs.cuh for one per token and channel. Both parts use the same shared memory. On
// a GPU with enough of it, the next 64 columns of V are loaded during the products of these, and
// with decays per token also q and k (PrefetchGradientConfig).
#pragma once

#include "kernels/common/cuda/chunk_rows.cuh"
#include "kernels/delta_rule/cuda/accumulators.cuh"
#include "kernels/delta_rule/cuda/adjoint_scan.cuh"
#include "kernels/delta_rule/cuda/backward.h"
#include "kernels/delta_rule/cuda/decays.cuh"

namespace halflife::kernels::delta {

struct ChunkGradientsParams {
  DeltaRuleGradArgs grads;
  Workspace workspace;
  BackwardArrays arrays;
  // [B, T, HV, K]: the caller's tensors, or fp32 if value heads share a head.
  TensorView dq, dk;
};

// Values of the rows of a chunk. Sums over columns have one part per half of the columns.
struct GradientRows {
  float beta[kChunk];
  float own[kChunk];          // scale D_rr
  float lambda_v[2][kChunk];  // Lambda_r . v_r
  float reader[2][kChunk];    // k_r . rho_r
  float late[2][kChunk];      // per token: terms of dlog_decay of tokens up to r
  float early[2][kChunk];     // per token: terms of dlog_decay of tokens after r
};

template <typename T_, int kK_, bool kPerChannel_>
struct GradientConfig {
  using T = T_;
  using Rows = Matrix<T, kK_>;
  using Square = Matrix<T, kChunk>;  // also [.., kValues]
  static constexpr int kK = kK_, kThreads = 256, kHalf = kK / 2;
  static constexpr bool kPerChannel = kPerChannel_;
  static constexpr int kStages = 1;      // of tiles of 64 columns of V
  static constexpr bool kApart = false;  // whether the second part has memory of its own
  static constexpr int kTilesBytes =
      3 * Square::Bytes(kChunk) + Square::Bytes(kK) + Rows::Bytes(kChunk);
  static constexpr int kValuesBytes = kTilesBytes + 2 * Square::Bytes(kChunk);
  static constexpr int kPairsBytes =
      2 * Rows::Bytes(kChunk) + 2 * Square::Bytes(kChunk) +
      (kPerChannel ? 2 * Rows::Bytes(kChunk) + Matrix<float, kK>::Bytes(kChunk) : 0);
  static constexpr int kSharedPart = kValuesBytes > kPairsBytes ? kValuesBytes : kPairsBytes;
  // The decays per channel of fp32 operands are read from global memory, for lack of space.
  static constexpr bool kDecaysShared = kPerChannel && sizeof(T) == 2;
  static constexpr int kDecayBytes = kDecaysShared ? Matrix<float, kK>::Bytes(kChunk)
                                     : kPerChannel ? 0
                                                   : static_cast<int>(sizeof(DecayTables));
  static constexpr int kOtherBytes = kDecayBytes + static_cast<int>(sizeof(GradientRows)) +
                                     kThreads * static_cast<int>(sizeof(float));
  static constexpr int kSmemBytes = kSharedPart + kOtherBytes;
  static_assert(kSmemBytes <= kMaxSharedBytesPerBlock);
};

// The same for bf16 in the shared memory of Hopper: with two stages, and unless decays are per
// channel with q, k, D and F apart. K = 128: 203 and 177 KiB.
template <int kK_, bool kPerChannel_>
struct PrefetchGradientConfig : GradientConfig<bf16, kK_, kPerChannel_> {
  using Base = GradientConfig<bf16, kK_, kPerChannel_>;
  static constexpr int kStages = 2;
  static constexpr bool kApart = !kPerChannel_;
  static constexpr int kValuesBytes = Base::kValuesBytes + Base::kTilesBytes;
  static constexpr int kSharedPart = kApart ? kValuesBytes + Base::kPairsBytes
                                     : kValuesBytes > Base::kPairsBytes ? kValuesBytes
                                                                        : Base::kPairsBytes;
  static constexpr int kSmemBytes = kSharedPart + Base::kOtherBytes;
  static_assert(kSmemBytes <= kMaxSharedBytesPerBlock);
};

// 64 columns of V.
template <typename Config>
struct ValueTiles {
  typename Config::Square u, du, dout;
  typename Config::Square state;  // S [K, 64 columns of V]
  typename Config::Rows adjoint;  // R^T [64 columns of V, K]
};

template <typename Config>
struct GradientShared {
  using T = typename Config::T;

  // The first part:
  unsigned char* tiles;  // [kStages]: see Stage()
  typename Config::Square lambda, inverse;
  // The second part, in the same memory unless Config::kApart:
  typename Config::Rows q, k;
  typename Config::Square d, f;
  typename Config::Rows q_level, k_level;  // per channel: see channel_pairs.cuh
  Matrix<float, Config::kK> factors;       // per channel
  Matrix<float, Config::kK> late, early;   // per channel, in place of the three above
  DecayTables* tables;                     // per token
  Matrix<float, Config::kK> log2_decay;    // per channel
  GradientRows* rows;
  // [kThreads]: sums of S R over columns of V, of channel thread % K. Each thread has its own.
  float* through;

  HL_DEVICE explicit GradientShared(unsigned char* raw) {
    constexpr int kSquare = Config::Square::Bytes(kChunk), kRows = Config::Rows::Bytes(kChunk);
    SmemCarver carver(raw);
    unsigned char* const part = carver.Take<unsigned char>(Config::kSharedPart);
    tiles = part + 2 * kSquare;
    lambda.data = reinterpret_cast<T*>(part);
    inverse.data = reinterpret_cast<T*>(part + kSquare);
    unsigned char* const pairs = Config::kApart ? part + Config::kValuesBytes : part;
    q.data = reinterpret_cast<T*>(pairs);
    k.data = reinterpret_cast<T*>(pairs + kRows);
    d.data = reinterpret_cast<T*>(pairs + 2 * kRows);
    f.data = reinterpret_cast<T*>(pairs + 2 * kRows + kSquare);
    unsigned char* const levels = pairs + 2 * kRows + 2 * kSquare;
    q_level.data = reinterpret_cast<T*>(levels);
    k_level.data = reinterpret_cast<T*>(levels + kRows);
    factors.data = reinterpret_cast<float*>(levels + 2 * kRows);
    late.data = reinterpret_cast<float*>(levels);
    early.data = late.data + Matrix<float, Config::kK>::Elements(kChunk);
    unsigned char* const decays = carver.Take<unsigned char>(Config::kDecayBytes);
    tables = reinterpret_cast<DecayTables*>(decays);
    log2_decay.data = reinterpret_cast<float*>(decays);
    rows = carver.Take<GradientRows>(1);
    through = carver.Take<float>(Config::kThreads);
  }
  // Returns the tiles of the columns of V from `first` on.
  HL_DEVICE ValueTiles<Config> Stage(int first) const {
    constexpr int kSquare = Config::Square::Elements(kChunk);
    T* const begin = reinterpret_cast<T*>(
        Config::kStages == 1 ? tiles : tiles + first / kValues % 2 * Config::kTilesBytes);
    T* const state = begin + 3 * kSquare;
    return {{begin},
            {begin + kSquare},
            {begin + 2 * kSquare},
            {state},
            {state + Config::Square::Elements(Config::kK)}};
  }
};

struct GradientPlace {
  ChunkEntry chunk;
  int head, key_head;
  int64_t index;     // of the arrays: n HV + head
  int row;           // the warp's first row
  int half, column;  // the warp's half of the columns, and its first column of the slice of K
  int first_key;     // first channel of the slice of K
};
template <typename Config>
HL_DEVICE GradientPlace MakeGradientPlace(const DeltaRuleArgs& args) {
  GradientPlace place;
  place.chunk = args.chunks[blockIdx.x / args.num_value_heads];
  place.head = static_cast<int>(blockIdx.x % args.num_value_heads);
  place.key_head = SharedHead(place.head, args.num_heads, args.num_value_heads);
  place.index = blockIdx.x;
  place.row = WarpId() % 4 * 16;
  place.half = WarpId() / 4;
  place.column = place.half * Config::kHalf;
  place.first_key = 0;
  return place;
}

// The sums that a warp keeps in accumulators: 16 rows, and half of the columns.
template <typename Config>
struct GradientSums {
  static constexpr int kTiles = Config::kHalf / 8;

  float query[kTiles][4];    // dout S^T, then dq
  float reader[kTiles][4];   // Lambda S^T, then rho
  float written[kTiles][4];  // u R^T, then dk
  float d[4][4], f[4][4];    // D and F [16, 32]

  HL_DEVICE void Start() {
    Clear(query);
    Clear(reader);
    Clear(written);
    Clear(d);
    Clear(f);
  }
};

// Stores accumulators to a tensor of type T or, for a partial result, fp32.
template <typename T, int kTiles>
HL_DEVICE void StoreGradient(float (&d)[kTiles][4], const tiles::Rows& rows, int length, int row,
                             int column) {
  if (rows.is_wide) {
    StoreToRows<float>(d, rows, length, row, column);
  } else {
    StoreToRows<bf16>(d, rows, length, row, column);
  }
}

// ---- the first part ----

// Loads the tiles of columns `first` .. of V.
template <typename Config>
HL_DEVICE void LoadValueTiles(const GradientShared<Config>& smem,
                              const ChunkGradientsParams& params, const GradientPlace& place,
                              int first) {
  using T = typename Config::T;
  constexpr int kThreads = Config::kThreads, kK = Config::kK;
  const DeltaRuleArgs& args = params.grads.forward;
  const int width = PaddedValues(args.head_dim_v), columns = width - first;
  const int keys = PaddedKeys(args.head_dim_k);
  const auto array = [&](const void* data, int rows) {
    return static_cast<const T*>(data) + place.index * rows * width;
  };
  const ValueTiles<Config> tiles = smem.Stage(first);
  LoadArray<kChunk, kThreads, 1>(tiles.u, array(params.workspace.u, kChunk) + first, width,
                                 columns);
  LoadArray<kChunk, kThreads, 1>(tiles.du, array(params.arrays.du, kChunk) + first, width, columns);
  LoadArray<kK, kThreads, 1>(tiles.state,
                             array(params.workspace.states, keys) + place.first_key * width + first,
                             width, columns);
  LoadRows<kValues, kThreads, 1>(
      tiles.adjoint,
      MatrixRows(array(params.arrays.adjoints, keys) + first * keys + place.first_key, keys, kK),
      columns);
  LoadRows<kChunk, kThreads, 1>(
      tiles.dout, tiles::RowsOf(params.grads.dout, place.chunk, place.head, first, args.head_dim_v),
      place.chunk.length);
  CpAsyncCommit();
}

// Lambda, dv, and the sums Lambda_r . v_r, 16 columns at a time. dv and the sums do not depend on
// the slice of K, so only the first slice adds and stores them.
template <typename Config>
HL_DEVICE void ValueGradients(const GradientShared<Config>& smem,
                              const ChunkGradientsParams& params, const GradientPlace& place,
                              int first) {
  using T = typename Config::T;
  const DeltaRuleArgs& args = params.grads.forward;
  const int length = place.chunk.length;
  const bool once = place.first_key == 0;
  float lambda_v[2] = {};
  const tiles::Rows v = tiles::RowsOf(args.v, place.chunk, place.head, first, args.head_dim_v);
  const tiles::Rows dv =
      tiles::RowsOf(params.grads.dv, place.chunk, place.head, first, args.head_dim_v);
#pragma unroll 1
  for (int column = 32 * place.half; column < 32 * place.half + 32; column += 16) {
    float lambda[2][4];
    Clear(lambda);
    MultiplyAdd<1>(lambda, Transposed(smem.inverse), place.row, smem.Stage(first).du, column,
                   place.row, kChunk);
    ForRowPairs(lambda, place.row, column, [&](int i, int r, int c, float x, float y) {
      StorePair(&smem.lambda.At(r, c), x, y);
      if (r >= length || !once) return;
      const T* const row = reinterpret_cast<const T*>(v.data) + r * v.stride_t + c;
      if (c < v.dim) lambda_v[i] += x * ToFloat(row[0]);
      if (c + 1 < v.dim) lambda_v[i] += y * ToFloat(row[1]);
      const float beta = smem.rows->beta[r];
      StorePairToRows<T>(dv, length, r, c, beta * x, beta * y);
    });
  }
  AddRowSums(lambda_v, smem.rows->lambda_v[place.half], place.row);
  __syncthreads();
}

// Adds the products over 64 columns of V.
template <typename Config>
HL_DEVICE void SumOverValues(GradientSums<Config>& sums, const GradientShared<Config>& smem,
                             const GradientPlace& place, int first) {
  constexpr int kPairs = Config::kHalf / 16, kK = Config::kK;
  const ValueTiles<Config> tiles = smem.Stage(first);
  if (32 * place.half <= place.row) {
    MultiplyAdd<2>(sums.d, tiles.dout, place.row, Transposed(tiles.u), 32 * place.half, 0, kValues);
    MultiplyAdd<2>(sums.f, smem.lambda, place.row, Transposed(tiles.u), 32 * place.half, 0,
                   kValues);
  }
  MultiplyAdd<kPairs>(sums.query, tiles.dout, place.row, Transposed(tiles.state), place.column, 0,
                      kValues);
  MultiplyAdd<kPairs>(sums.reader, smem.lambda, place.row, Transposed(tiles.state), place.column, 0,
                      kValues);
  MultiplyAdd<kPairs>(sums.written, tiles.u, place.row, tiles.adjoint, place.column, 0, kValues);
  const int c = static_cast<int>(threadIdx.x) % kK;
  float through = 0;
#pragma unroll 4
  for (int v = static_cast<int>(threadIdx.x) / kK; v < kValues; v += Config::kThreads / kK)
    through += ToFloat(tiles.state.At(c, v)) * ToFloat(tiles.adjoint.At(v, c));
  smem.through[threadIdx.x] += through;
}

// ---- between the parts ----

template <typename Config>
HL_DEVICE void LoadQueriesAndKeys(const GradientShared<Config>& smem, const DeltaRuleArgs& args,
                                  const GradientPlace& place) {
  constexpr int kThreads = Config::kThreads;
  const ChunkEntry& chunk = place.chunk;
  LoadRows<kChunk, kThreads, 1>(
      smem.q, tiles::RowsOf(args.q, chunk, place.key_head, place.first_key, args.head_dim_k),
      chunk.length);
  LoadRows<kChunk, kThreads, 1>(
      smem.k, tiles::RowsOf(args.k, chunk, place.key_head, place.first_key, args.head_dim_k),
      chunk.length);
  CpAsyncCommit();
}

// Stores scale weight(r, s) D and weight(r, s) F for s < r, zeros for s > r, and scale D_rr apart.
template <typename Config, typename Weight>
HL_DEVICE void StoreScoreGradients(GradientSums<Config>& sums, const GradientShared<Config>& smem,
                                   const GradientPlace& place, float scale, const Weight& weight) {
  const int column = 32 * place.half;
  const auto weigh = [&](float x, int r, int s) { return s < r ? x * weight(r, s) : 0.0f; };
  ForRowPairs(sums.d, place.row, column, [&](int, int r, int s, float x, float y) {
    KeepLoadsApart();
    if (s == r) smem.rows->own[r] = scale * x;
    if (s + 1 == r) smem.rows->own[r] = scale * y;
    StorePair(&smem.d.At(r, s), scale * weigh(x, r, s), scale * weigh(y, r, s + 1));
  });
  ForRowPairs(sums.f, place.row, column, [&](int, int r, int s, float x, float y) {
    KeepLoadsApart();
    StorePair(&smem.f.At(r, s), weigh(x, r, s), weigh(y, r, s + 1));
  });
}

// beta, and zeros in place of the sums.
template <typename Config>
HL_DEVICE void StartRows(const GradientShared<Config>& smem, const DeltaRuleArgs& args,
                         const GradientPlace& place) {
  const int r = static_cast<int>(threadIdx.x);
  if (r >= kChunk) return;
  GradientRows& rows = *smem.rows;
  rows.beta[r] =
      r < place.chunk.length ? Load<float>(args.beta, place.chunk, r, place.head, 0) : 0.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    rows.lambda_v[i][r] = rows.reader[i][r] = rows.late[i][r] = rows.early[i][r] = 0;
}

// Waits for all but the last `later` groups of copies.
HL_DEVICE void WaitForTiles(int later) {
  if (later == 0) return CpAsyncWait<0>();
  if (later == 1) return CpAsyncWait<1>();
  CpAsyncWait<2>();
}

// Computes the first part, and starts the loads of q and k.
template <typename Config>
HL_DEVICE void ValuePart(GradientSums<Config>& sums, const GradientShared<Config>& smem,
                         const ChunkGradientsParams& params, const GradientPlace& place) {
  using T = typename Config::T;
  const DeltaRuleArgs& args = params.grads.forward;
  sums.Start();
  if (Config::kPerChannel || place.first_key == 0) smem.through[threadIdx.x] = 0;
  LoadArray<kChunk, Config::kThreads, 1>(
      smem.inverse, static_cast<const T*>(params.workspace.inverse) + place.index * kChunk * kChunk,
      kChunk);
  LoadValueTiles(smem, params, place, 0);
  if constexpr (Config::kApart) LoadQueriesAndKeys(smem, args, place);
#pragma unroll 1
  for (int first = 0; first < args.head_dim_v; first += kValues) {
    if (first > 0) __syncthreads();  // the previous columns are no longer in use
    if constexpr (Config::kStages == 1) {
      if (first > 0) LoadValueTiles(smem, params, place, first);
      CpAsyncWait<0>();
    } else {
      const bool loads = first + kValues < args.head_dim_v;
      if (loads) LoadValueTiles(smem, params, place, first + kValues);
      WaitForTiles(loads + (Config::kApart && first == 0));
    }
    __syncthreads();
    ValueGradients(smem, params, place, first);
    SumOverValues(sums, smem, place, first);
  }
  __syncthreads();
  if constexpr (!Config::kApart) LoadQueriesAndKeys(smem, args, place);
}

// Stores the gradient of beta, from the sums of all warps.
template <typename Config>
HL_DEVICE void StoreBetaGradient(const GradientShared<Config>& smem, const TensorView& dbeta,
                                 const GradientPlace& place) {
  const int r = static_cast<int>(threadIdx.x);
  if (dbeta.data == nullptr || r >= place.chunk.length) return;
  const GradientRows& rows = *smem.rows;
  Store<float>(
      dbeta, place.chunk, r, place.head, 0,
      (rows.lambda_v[0][r] + rows.lambda_v[1][r]) - (rows.reader[0][r] + rows.reader[1][r]));
}

// Returns true if no earlier state reaches row t, so that the gradient of its decay is 0. Its terms
// would cancel only up to rounding.
HL_DEVICE bool IsCut(const ChunkEntry& chunk, int t, float log2_decay) {
  return log2_decay == -__uint_as_float(0x7f800000u) ||
         (t == 0 && (chunk.flags & kChunkResets) != 0);
}

}  // namespace halflife::kernels::delta
