// The gradient of the biases by distance: sums over the diagonals of pairs of tiles of dS times
// each query's factor. A block has one head of a row and one band, which is all pairs of tiles at
// one tile distance. The gradient of a distance is the sum from two bands. There are no atomic
// additions: the order of the sum is that of the tiles.
#pragma once

#include "kernels/common/cuda/pair_attention/query_gradient.cuh"

namespace halflife::kernels::pairs {

template <int kD, int kV>
struct BiasGradientSmem {
  bf16 *q, *k, *v, *dout;  // [64, kD], [64, kV]
  QueryTable* table;
  float *bias, *dscores;  // [kBiasTile], [64, kScoreStride]
  uint32_t* kept;         // [kKeptWords], with dropout

  HL_DEVICE BiasGradientSmem(unsigned char* smem, bool drops) {
    SmemCarver carver(smem);
    q = carver.Take<bf16>(kTile * kD);
    k = carver.Take<bf16>(kTile * kD);
    v = carver.Take<bf16>(kTile * kV);
    dout = carver.Take<bf16>(kTile * kV);
    table = carver.Take<QueryTable>(1);
    bias = carver.Take<float>(kBiasTile);
    dscores = carver.Take<float>(kTile * kScoreStride);
    kept = carver.Take<uint32_t>(drops ? kKeptWords : 0);
  }
};

// Stores dS of one pair of tiles, times each query's factor, in smem.dscores.
template <int kD, int kV>
HL_DEVICE void StorePair(const BiasGradientSmem<kD, kV>& smem, const BackwardParams& params,
                         const QueryPlace& place, int key_tile, const TileSpan& span,
                         int num_slices) {
  const PairAttentionArgs& args = params.grads.forward;
  LoadQueries<kD>(smem.q, args, place.row, place.head, place.tile);
  LoadKeys<kD>(smem.k, args, place.row, place.head, key_tile);
  LoadTable(*smem.table, args, params.deltas, args.normaliser, place.row, place.head, place.tile);
  LoadBias(smem.bias, args, place.head, place.tile, key_tile);
  DrawKept(smem.kept, args, place.row, place.head, place.tile, key_tile);
  float dscores[kTile / 8][4], products[kTile / 8][4];
  Clear(dscores), Clear(products);
  for (int slice = 0; slice < num_slices; ++slice) {
    LoadValues<kV>(smem.v, args, place.row, place.head, key_tile, slice);
    LoadOutputGradient<kV>(smem.dout, params.grads, place.row, place.head, place.tile, slice);
    CpAsyncCommit();
    CpAsyncWait<0>();
    __syncthreads();
    MultiplyRows<kV>(dscores, smem.dout, 16 * WarpId(), smem.v, 0,
                     ColumnsOf<kV>(args.head_dim_v - kV * slice));
    __syncthreads();  // the buffers may now be overwritten by the next slice
  }
  MultiplyRows<kD>(products, smem.q, 16 * WarpId(), smem.k, 0, ColumnsOf<kD>(args.head_dim));
  Query queries[2];
  LoadRowsOfTable(queries, *smem.table, args);
  if (args.dropout.drops()) Drop(dscores, args.dropout, smem.kept);
  Differentiate(dscores, products, PairOf(args, span, key_tile, smem.bias), queries);
  const int row = 16 * WarpId() + LaneRow();
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      smem.dscores[(row + i / 2 * 8) * kScoreStride + 8 * n + LaneColumn() + i % 2] =
          dscores[n][i] * queries[i / 2].bias_scale;
  }
}

template <int kD, int kV>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    BiasGradientKernel(const HL_GRID_CONSTANT BackwardParams params, int num_slices, int num_tiles,
                       int num_bands) {
  const PairAttentionArgs& args = params.grads.forward;
  HL_DYNAMIC_SMEM(raw);
  const BiasGradientSmem<kD, kV> smem(raw, args.dropout.drops());
  const int band =
      // Tile index of the keys minus that of the queries.
      static_cast<int>(blockIdx.x) % num_bands - (num_tiles - 1);
  const int row_head = static_cast<int>(blockIdx.x) / num_bands;
  QueryPlace place = {0, row_head % args.num_heads, row_head / args.num_heads, 0};
  const int num_key_tiles = (args.num_keys + kTile - 1) / kTile;
  // Column of the key minus that of the query.
  const int diagonal = static_cast<int>(threadIdx.x) - (kTile - 1);
  float sum = 0;
  for (; place.tile < num_tiles; ++place.tile) {
    const int key_tile = place.tile + band;
    if (key_tile < 0 || key_tile >= num_key_tiles) continue;
    const TileSpan span = params.spans[place.row * num_tiles + place.tile];
    if (!Meets(span, key_tile)) continue;
    StorePair(smem, params, place, key_tile, span, num_slices);
    __syncthreads();
    for (int r = max(0, -diagonal); r < min(kTile, kTile - diagonal); ++r)
      sum += smem.dscores[r * kScoreStride + r + diagonal];
    __syncthreads();  // all threads have read before the next pair is stored
  }
  params.bands[int64_t{kBiasTile} * blockIdx.x + threadIdx.x] = sum;
}

}  // namespace halflife::kernels::pairs
