// The forward. A block has one tile of queries of one head and one slice of V. It processes the
// tiles of keys that its queries see, with a running maximum and sum per query (Milakov and
// Gimelshein, 2018; Dao et al., 2022). Weights other than the softmax need no maximum.
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/pair_attention/tile_pair.cuh"

namespace halflife::kernels::pairs {

template <int kD, int kV>
struct ForwardSmem {
  bf16 *q, *k, *v;  // [64, kD], 2 [64, kD], 2 [64, kV]
  QueryTable* table;
  float* bias;     // 2 [kBiasTile]
  uint32_t* kept;  // 2 [kKeptWords], with dropout

  HL_DEVICE ForwardSmem(unsigned char* smem, bool drops) {
    SmemCarver carver(smem);
    q = carver.Take<bf16>(kTile * kD);
    k = carver.Take<bf16>(2 * kTile * kD);
    v = carver.Take<bf16>(2 * kTile * kV);
    table = carver.Take<QueryTable>(1);
    bias = carver.Take<float>(2 * kBiasTile);
    kept = carver.Take<uint32_t>(drops ? 2 * kKeptWords : 0);
  }
};

template <int kD, int kV>
HL_DEVICE void LoadStep(const ForwardSmem<kD, kV>& smem, const PairAttentionArgs& args,
                        const QueryPlace& place, int tile, int stage) {
  LoadKeys<kD>(smem.k + stage * kTile * kD, args, place.row, place.head, tile);
  LoadValues<kV>(smem.v + stage * kTile * kV, args, place.row, place.head, tile, place.slice);
  LoadBias(smem.bias + stage * kBiasTile, args, place.head, place.tile, tile);
  DrawKept(smem.kept + stage * kKeptWords, args, place.row, place.head, place.tile, tile);
}

// The running maximum of a thread's two queries, and the sum of their weights relative to it.
struct RunningSoftmax {
  float top[2] = {kNever, kNever}, sum[2] = {0, 0};
};

// Replaces the scores of a warp's 16 queries by weights relative to the running maximum, and
// rescales `out` when the maximum changes.
template <int kTiles>
HL_DEVICE void Weigh(float (&scores)[kTile / 8][4], const PairOfTiles& pair,
                     const Query (&queries)[2], RunningSoftmax& running, float (&out)[kTiles][4]) {
  const int lane = FreshLaneId(), first_row = 16 * FreshWarpId() + lane / 4;
  float top[2] = {running.top[0], running.top[1]};
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2, c = 8 * n + lane % 4 * 2 + i % 2;
      const float score = Score(pair, queries[half], scores[n][i], first_row + 8 * half, c);
      scores[n][i] = IsSeen(pair, queries[half], c) ? score : kNever;
      top[half] = fmaxf(top[half], scores[n][i]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    top[half] = fmaxf(top[half], __shfl_xor_sync(kFullWarp, top[half], 1));
    top[half] = fmaxf(top[half], __shfl_xor_sync(kFullWarp, top[half], 2));
    const float factor = Exp2Approx((running.top[half] - top[half]) * kLog2E);
    running.top[half] = top[half];
    running.sum[half] *= factor;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) out[n][2 * half] *= factor, out[n][2 * half + 1] *= factor;
  }
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2;
      // Before a query has seen a key its maximum is kNever as well, and the weight would be 1.
      const bool none = scores[n][i] == kNever;
      scores[n][i] = none ? 0.0f : Exp2Approx((scores[n][i] - running.top[half]) * kLog2E);
      running.sum[half] += scores[n][i];
    }
  }
}
// Computes the weights of a plain polynomial, and their sums.
HL_DEVICE void WeighPlain(float (&scores)[kTile / 8][4], const PlainPolynomial& polynomial,
                          RunningSoftmax& running) {
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[n][i] = polynomial.WeightOf(scores[n][i]);
      running.sum[i / 2] += scores[n][i];
    }
  }
}
// Computes the weights of the other kinds, and their sums.
HL_DEVICE void WeighAlone(float (&scores)[kTile / 8][4], const PairOfTiles& pair,
                          const Query (&queries)[2], RunningSoftmax& running) {
  const int lane = FreshLaneId(), first_row = 16 * FreshWarpId() + lane / 4;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2, c = 8 * n + lane % 4 * 2 + i % 2;
      const float score = Score(pair, queries[half], scores[n][i], first_row + 8 * half, c);
      const bool seen = IsSeen(pair, queries[half], c);
      scores[n][i] = seen ? WeightOf(pair, queries[half], score).weight : 0.0f;
      running.sum[half] += scores[n][i];
    }
  }
}

// Divides out and stores it.
template <int kD, int kV>
HL_DEVICE void StoreOutput(const ForwardSmem<kD, kV>& smem, const PairAttentionArgs& args,
                           const QueryPlace& place, RunningSoftmax& running,
                           float (&out)[kV / 8][4]) {
  const int lane = FreshLaneId(), length = args.num_queries - kTile * place.tile;
  if (args.divides()) {
    const bool is_softmax = args.weight == Weight::kSoftmax;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = RowSum(running.sum[half]) + (is_softmax ? 0.0f : args.norm_eps);
      const float inverse = sum > 0 || !is_softmax ? 1 / sum : 0.0f;
#pragma unroll
      for (int n = 0; n < kV / 8; ++n) out[n][2 * half] *= inverse, out[n][2 * half + 1] *= inverse;
      const int r = 16 * FreshWarpId() + lane / 4 + 8 * half;
      if (args.normaliser == nullptr || place.slice > 0 || lane % 4 != 0 || r >= length) continue;
      const int64_t query = int64_t{1} * place.row * args.num_queries + kTile * place.tile + r;
      const float log_sum =
          sum > 0 ? running.top[half] + logf(sum) : __uint_as_float(0xff800000u);  // -inf
      args.normaliser[query * args.num_heads + place.head] = is_softmax ? log_sum : sum;
    }
  }
  const Rows rows = RowsOf(args.out, TokensOf(place.row, place.tile), place.head, kV * place.slice,
                           args.head_dim_v);
  __syncthreads();  // rows are staged in the memory of the last tile of v
  StoreRows<kV>(out, 1.0f, smem.v, rows, length);
}

template <int kD, int kV>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    ForwardKernel(const HL_GRID_CONSTANT PairAttentionArgs args, int num_slices, int num_tiles) {
  HL_DYNAMIC_SMEM(raw);
  const ForwardSmem<kD, kV> smem(raw, args.dropout.drops());
  const QueryPlace place = QueryPlaceOf(args, num_slices, num_tiles);
  const int num_key_tiles = (args.num_keys + kTile - 1) / kTile;
  LoadQueries<kD>(smem.q, args, place.row, place.head, place.tile);
  LoadTable(*smem.table, args, nullptr, nullptr, place.row, place.head, place.tile);
  const TileSpan span = SpanOf(args, place.row, place.tile);
  TileWalk walk(span, num_key_tiles);
  if (walk.tile() < num_key_tiles) LoadStep(smem, args, place, walk.tile(), 0);
  CpAsyncCommit();

  const int columns = ColumnsOf<kD>(args.head_dim);
  const int columns_v = ColumnsOf<kV>(args.head_dim_v - kV * place.slice);
  float out[kV / 8][4];
  Clear(out);
  RunningSoftmax running;
  Query queries[2];
  for (int step = 0; walk.tile() < num_key_tiles; ++step) {
    const int tile = walk.tile(), stage = step % 2;
    walk.Advance();
    CpAsyncWait<0>();
    __syncthreads();  // the loads have arrived, and all threads have read the other stage
    if (step == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        queries[half] = QueryOf(*smem.table, 16 * WarpId() + LaneRow() + 8 * half, args);
    }
    if (walk.tile() < num_key_tiles) LoadStep(smem, args, place, walk.tile(), 1 - stage);
    CpAsyncCommit();
    float scores[kTile / 8][4];
    Clear(scores);
    MultiplyRows<kD>(scores, smem.q, 16 * WarpId(), smem.k + stage * kTile * kD, 0, columns);
    const PairOfTiles pair = PairOf(args, span, tile, smem.bias + stage * kBiasTile);
    if (args.weight == Weight::kSoftmax) {
      Weigh(scores, pair, queries, running, out);
    } else if (pair.is_plain_polynomial()) {
      WeighPlain(scores, PlainPolynomial(pair), running);
    } else {
      WeighAlone(scores, pair, queries, running);
    }
    if (args.dropout.drops()) Drop(scores, args.dropout, smem.kept + stage * kKeptWords);
    MultiplyWeights<kV>(out, scores, smem.v + stage * kTile * kV, 0, columns_v);
  }
  CpAsyncWait<0>();
  StoreOutput(smem, args, place, running, out);
}

template <int kD, int kV>
void LaunchForward(const PairAttentionArgs& args, cudaStream_t stream) {
  const int slices = (args.head_dim_v + kV - 1) / kV, num_tiles = NumQueryTiles(args);
  const int64_t blocks = int64_t{1} * slices * args.num_heads * args.batch * num_tiles;
  Launch({dim3(GridBlocks(blocks, "pairs of tiles")), dim3(kThreads),
          ForwardBytes(kD, kV) + DropoutBytes(args.dropout.drops()), "pairs of tiles"},
         stream, ForwardKernel<kD, kV>, args, slices, num_tiles);
}

}  // namespace halflife::kernels::pairs
