// Shared by the kernels for Hopper's warpgroups: a chunk's rows of q, k, v and dout as pieces of 64
// columns (the width of the swizzle), which TMA loads, and accumulators in wgmma's form.
#pragma once

#include "kernels/common/cuda/device90.h"
#include "kernels/decay_attention/cuda/tile.cuh"

namespace halflife::kernels::decay {

constexpr int kPieceColumns = 64;
constexpr int kPieceElements = kChunk * kPieceColumns;

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
