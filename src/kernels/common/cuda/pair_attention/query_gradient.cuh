// dq. A block has one tile of queries of one head and, like the forward, processes the tiles of
// keys that the queries see. It recomputes the weights from the scores and the forward's sums:
//
//   dP = dO V^T,  dS = P (dP - dO . O) of a softmax,  dq = scale dS K
//
// (dS as for a softmax.) Dropout removes from dP what it removes from the weights. dP is the sum
// over the slices of V, in order. With kSliced there are several, and each is loaded when it is
// needed, together with that of dO.
#pragma once

#include "kernels/common/cuda/pair_attention/tile_pair.cuh"

namespace halflife::kernels::pairs {

template <int kD, int kV, bool kSliced>
struct QueryGradientSmem {
  bf16 *q, *k, *v, *dout;  // [64, kD], 2 [64, kD], 2 [64, kV], [64, kV] or 2 of them
  QueryTable* table;
  float* bias;     // 2 [kBiasTile]
  uint32_t* kept;  // 2 [kKeptWords], with dropout

  HL_DEVICE QueryGradientSmem(unsigned char* smem, bool drops) {
    SmemCarver carver(smem);
    q = carver.Take<bf16>(kTile * kD);
    k = carver.Take<bf16>(2 * kTile * kD);
    v = carver.Take<bf16>(2 * kTile * kV);
    dout = carver.Take<bf16>((kSliced ? 2 : 1) * kTile * kV);
    table = carver.Take<QueryTable>(1);
    bias = carver.Take<float>(2 * kBiasTile);
    kept = carver.Take<uint32_t>(drops ? 2 * kKeptWords : 0);
  }
};

// Loads the data of one step: a slice of a tile of keys.
template <int kD, int kV, bool kSliced>
HL_DEVICE void LoadStep(const QueryGradientSmem<kD, kV, kSliced>& smem,
                        const PairAttentionGradArgs& grads, const QueryPlace& place, int tile,
                        int tile_stage, int slice, int stage) {
  const PairAttentionArgs& args = grads.forward;
  if (slice == 0) {
    LoadKeys<kD>(smem.k + tile_stage * kTile * kD, args, place.row, place.head, tile);
    LoadBias(smem.bias + tile_stage * kBiasTile, args, place.head, place.tile, tile);
    DrawKept(smem.kept + tile_stage * kKeptWords, args, place.row, place.head, place.tile, tile);
  }
  LoadValues<kV>(smem.v + stage * kTile * kV, args, place.row, place.head, tile, slice);
  if (kSliced)
    LoadOutputGradient<kV>(smem.dout + stage * kTile * kV, grads, place.row, place.head, place.tile,
                           slice);
}

// Replaces dP by dS, for a warp's 16 queries.
HL_DEVICE void Differentiate(float (&dscores)[kTile / 8][4], const float (&products)[kTile / 8][4],
                             const PairOfTiles& pair, const Query (&queries)[2]) {
  if (pair.is_plain_polynomial()) {
    const PlainPolynomial polynomial(pair);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const PlainQuery query = PlainQueryOf(pair, queries[half].normaliser, queries[half].delta);
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i)
          dscores[n][i] =
              polynomial.SlopeOf(products[n][i]) * query.inverse * (dscores[n][i] - query.delta);
      }
    }
    return;
  }
  const int lane = FreshLaneId(), first_row = 16 * FreshWarpId() + lane / 4;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2, c = 8 * n + lane % 4 * 2 + i % 2;
      dscores[n][i] =
          WeightsOf(pair, queries[half], products[n][i], dscores[n][i], first_row + 8 * half, c)
              .dscore;
    }
  }
}

HL_DEVICE void LoadRowsOfTable(Query (&queries)[2], const QueryTable& table,
                               const PairAttentionArgs& args) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    queries[half] = QueryOf(table, 16 * WarpId() + LaneRow() + 8 * half, args);
}

template <int kD, int kV, bool kSliced>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    QueryGradientKernel(const HL_GRID_CONSTANT BackwardParams params, int num_slices,
                        int num_tiles) {
  const PairAttentionGradArgs& grads = params.grads;
  const PairAttentionArgs& args = grads.forward;
  HL_DYNAMIC_SMEM(raw);
  const QueryGradientSmem<kD, kV, kSliced> smem(raw, args.dropout.drops());
  const QueryPlace place = QueryPlaceOf(args, /*num_slices=*/1, num_tiles);
  const int num_key_tiles = (args.num_keys + kTile - 1) / kTile;
  const TileSpan span = params.spans[place.row * num_tiles + place.tile];
  LoadQueries<kD>(smem.q, args, place.row, place.head, place.tile);
  LoadTable(*smem.table, args, params.deltas, args.normaliser, place.row, place.head, place.tile);
  if (!kSliced) LoadOutputGradient<kV>(smem.dout, grads, place.row, place.head, place.tile, 0);
  TileWalk walk(span, num_key_tiles);
  if (walk.tile() < num_key_tiles) LoadStep(smem, grads, place, walk.tile(), 0, 0, 0);
  CpAsyncCommit();

  const int columns = ColumnsOf<kD>(args.head_dim);
  float dq[kD / 8][4], dscores[kTile / 8][4];
  Clear(dq);
  Query queries[2];
  int slice = 0, tile_stage = 0, tile = walk.tile();
  for (int step = 0; tile < num_key_tiles; ++step) {
    const int stage = step % 2, this_tile = tile, this_slice = slice, this_stage = tile_stage;
    if (++slice == num_slices) slice = 0, tile_stage = 1 - tile_stage, walk.Advance();
    tile = walk.tile();
    CpAsyncWait<0>();
    __syncthreads();  // the loads have arrived, and all threads have read the other stage
    if (step == 0) LoadRowsOfTable(queries, *smem.table, args);
    if (tile < num_key_tiles) LoadStep(smem, grads, place, tile, tile_stage, slice, 1 - stage);
    CpAsyncCommit();
    if (this_slice == 0) Clear(dscores);
    MultiplyRows<kV>(dscores, smem.dout + (kSliced ? stage : 0) * kTile * kV, 16 * WarpId(),
                     smem.v + stage * kTile * kV, 0,
                     ColumnsOf<kV>(args.head_dim_v - kV * this_slice));
    if (this_slice + 1 < num_slices) continue;
    const bf16* const k = smem.k + this_stage * kTile * kD;
    float products[kTile / 8][4];
    Clear(products);
    MultiplyRows<kD>(products, smem.q, 16 * WarpId(), k, 0, columns);
    if (args.dropout.drops()) Drop(dscores, args.dropout, smem.kept + this_stage * kKeptWords);
    Differentiate(dscores, products,
                  PairOf(args, span, this_tile, smem.bias + this_stage * kBiasTile), queries);
    MultiplyWeights<kD>(dq, dscores, k, 0, columns);
  }
  CpAsyncWait<0>();
  __syncthreads();  // rows are staged in the memory of q, which other threads may have loaded
  StoreRows<kD>(dq, args.scale, smem.q,
                RowsOf(grads.dq, TokensOf(place.row, place.tile), place.head, 0, args.head_dim),
                args.num_queries - kTile * place.tile);
}

}  // namespace halflife::kernels::pairs
