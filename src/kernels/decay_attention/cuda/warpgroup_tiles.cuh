// Shared by the kernels for Hopper's warpgroups: a chunk's rows of q, k, v and dout as pieces of 64
// columns (the width of the swizzle), which TMA loads, accumulators in wgmma's form, and the
// weights of pairs of tokens.
#pragma once

#include "kernels/common/cuda/device90.h"
#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

constexpr int kPieceColumns = 64;
constexpr int kPieceElements = kChunk * kPieceColumns;

// ---- weights of pairs: exp(sum of log decays over (s, r]) for the key s and the query r ----

// DecayTables, and the weights of pairs within one base block, where prefix and suffix do not
// apply.
struct PairTables : DecayTables {
  float near_weights[kChunk][kBaseBlock];  // [r, s % 8]; 0 for s > r
};
static_assert(sizeof(PairTables) == kPairTablesBytes);

// Called by the warp that has filled the other tables. The sums have the order of PairWeights.
HL_DEVICE void FillNearWeights(PairTables& tables) {
#pragma unroll 1
  for (int r = LaneId(); r < kChunk; r += 32) {
    const int own = r % kBaseBlock;
    const float4* const block =
        reinterpret_cast<const float4*>(tables.log2_decay + r / kBaseBlock * kBaseBlock);
    const float4 low = block[0], high = block[1];
    const float decay[kBaseBlock] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float weights[kBaseBlock];
#pragma unroll
    for (int s = 0; s < kBaseBlock; s += 2) {
      float sum = 0;
#pragma unroll
      for (int m = s + 2; m < kBaseBlock; ++m)
        if (m <= own) sum += decay[m];
      weights[s + 1] = s + 1 <= own ? Exp2Approx(sum) : 0.0f;
      if (s + 1 <= own) sum += decay[s + 1];
      weights[s] = s <= own ? Exp2Approx(sum) : 0.0f;
    }
    auto* const row = reinterpret_cast<float4*>(tables.near_weights[r]);
    row[0] = make_float4(weights[0], weights[1], weights[2], weights[3]);
    row[1] = make_float4(weights[4], weights[5], weights[6], weights[7]);
  }
}

// The weight of a pair, and 0 if the key's base block is after the query's. The blocks are those of
// r and s. Pass blocks that are the same in all lanes of a warp, so that the branches are uniform.
HL_DEVICE float PairWeight(const PairTables& tables, int r, int query_block, int s, int key_block) {
  if (key_block > query_block) return 0;
  if (key_block == query_block) return tables.near_weights[r][s - key_block * kBaseBlock];
  const float between = tables.between[query_block * (kChunk / kBaseBlock) + key_block];
  return Exp2Approx(tables.suffix[s] + (tables.prefix[r] + between));
}

#if HL_HAS_WGMMA

using WgmmaTile = float[32];
// Eight adjacent mma.m16n8k16 accumulators form one of wgmma.
HL_DEVICE WgmmaTile& TileOf(float (*d)[4]) { return *reinterpret_cast<WgmmaTile*>(d); }

// Loads pieces of `piece_elements` from a matrix, starting at a row and column, by one thread.
HL_DEVICE void LoadPieces(bf16* tile, int columns, int piece_elements, const TensorMap& map,
                          uint64_t* barrier, int column, int row) {
  for (int piece = 0; piece < columns / kPieceColumns; ++piece)
    TmaLoad2d(tile + piece * piece_elements, &map, barrier, column + piece * kPieceColumns, row);
}

// acc += x y^T: x and y are tiles [64, kDim] of the chunk, in pieces.
template <int kDim>
HL_DEVICE void BeginPairs(float (&acc)[kChunk / 8][4], const bf16* x, const bf16* y) {
#pragma unroll
  for (int j = 0; j < kDim / 16; ++j) {
    const int piece = j / 4 * kPieceElements, bytes = 32 * (j % 4);
    WgmmaM64N64K16(TileOf(acc), AdvanceTile(TileDescriptor(x + piece), bytes),
                   AdvanceTile(TileDescriptor(y + piece), bytes));
  }
}

// Clears the rows from `length` on in a chunk's tile. TMA has loaded the rows that follow the
// chunk, which can belong to another document or contain NaN. Called by `threads` threads, of which
// this is number `thread`.
HL_DEVICE void ClearRows(bf16* tile, int columns, int length, int thread, int threads) {
  constexpr int kUnits = kPieceColumns / 8;
  const int dead = (kChunk - length) * kUnits;
#pragma unroll 1
  for (int piece = 0; piece < columns / kPieceColumns; ++piece) {
    bf16* const rows = tile + piece * kPieceElements + length * kPieceColumns;
#pragma unroll 1
    for (int i = thread; i < dead; i += threads)
      *reinterpret_cast<uint4*>(rows + 8 * i) = make_uint4(0, 0, 0, 0);
  }
}

#endif  // HL_HAS_WGMMA

// A tensor map over tiles [rows, columns] without gaps, stacked along the rows, in boxes of one
// tile.
inline TensorMap MapOfTiles(const void* tiles, int64_t num_tiles, int rows, int columns,
                            const char* name) {
  TileSource source;
  source.data = tiles;
  source.num_rows = num_tiles * rows;
  source.num_cols = columns;
  source.row_bytes = int64_t{2} * columns;
  source.element_bytes = 2;
  source.box_rows = rows;
  source.name = name;
  return MakeTensorMap(source);
}
// A tensor map over a tensor's rows of the batch, up to the last row of a batch tile, as one matrix
// with adjacent heads as columns, in boxes of one chunk.
struct RowsMap {
  TensorMap map;
  int64_t batch_rows;  // matrix rows per row of the batch
};
inline RowsMap MapOfRows(const TensorView& view, const DecayAttentionArgs& args,
                         const SegmentShape& shape, int heads, int dim, const char* name) {
  const int64_t batch_rows = view.stride_b / view.stride_t;
  const int64_t last = int64_t{shape.first_sequence} + args.batch - 1;
  TileSource source;
  source.data = view.data;
  source.num_rows = last * batch_rows + args.seq_len;
  source.num_cols = (heads - 1) * view.stride_h + dim;
  source.row_bytes = 2 * view.stride_t;
  source.element_bytes = 2;
  source.box_rows = kChunk;
  source.name = name;
  return {MakeTensorMap(source), batch_rows};
}
HL_DEVICE int MapRow(const RowsMap& rows, const ChunkEntry& chunk) {
  return static_cast<int>(chunk.row * rows.batch_rows) + chunk.token;
}

}  // namespace halflife::kernels::decay
