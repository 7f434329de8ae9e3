// Device functions for kernels that use Hopper's wgmma: tiles in shared memory, accumulators,
// operands in registers, and tensor maps. A tile of a chunk's 64 rows consists of pieces of 64
// columns, the width of the swizzle, which TMA loads.
#pragma once

#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/common/cuda/device90.h"
#include "kernels/common/cuda/tiles.cuh"

namespace halflife::kernels::tiles {

constexpr int kPieceColumns = 64;
constexpr int kPieceElements = kTileRows * kPieceColumns;

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
  const int dead = (kTileRows - length) * kUnits;
#pragma unroll 1
  for (int piece = 0; piece < columns / kPieceColumns; ++piece) {
    bf16* const rows = tile + piece * kPieceElements + length * kPieceColumns;
#pragma unroll 1
    for (int i = thread; i < dead; i += threads)
      *reinterpret_cast<uint4*>(rows + 8 * i) = make_uint4(0, 0, 0, 0);
  }
}

// Clears the columns from `length` on in an A fragment whose first column is k.
HL_DEVICE void ClearColumns(uint32_t (&a)[4], int k, int length) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = k + 8 * half + FreshLaneId() % 4 * 2;
    const uint32_t kept =
        (column < length ? 0xffffu : 0u) | (column + 1 < length ? 0xffff0000u : 0u);
    a[2 * half] &= kept;
    a[2 * half + 1] &= kept;
  }
}
// Loads v^T for the warp's 16 rows.
HL_DEVICE void LoadOwnValues(uint32_t (&a)[kTileRows / 16][4], const bf16* v, int length) {
  const bf16* const own_v = v + WarpId() / 4 * kPieceElements;
  const int columns_v = ColumnsFirst<kPieceColumns>(FreshLaneId());
#pragma unroll
  for (int j = 0; j < kTileRows / 16; ++j)
    LoadFragment<kPieceColumns, true>(a[j], own_v, columns_v, 16 * j, WarpId() % 4 * 16);
  if (length == kTileRows) return;
#pragma unroll
  for (int j = 0; j < kTileRows / 16; ++j) ClearColumns(a[j], 16 * j, length);
}

// ---- products of a warpgroup's 64 rows: x from registers, y [64, 16 kSteps] or [64, 8 kTiles] in
// pieces. These only issue the instructions: the caller fences before and commits after them ----

// acc += x y^T
template <int kSteps>
HL_DEVICE void IssueTimesTransposed(float (&acc)[kTileRows / 8][4], const uint32_t (&x)[kSteps][4],
                                    const bf16* y) {
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    const uint64_t tile = TileDescriptor(y + j / 4 * kPieceElements);
    WgmmaM64N64K16(TileOf(acc), x[j], AdvanceTile(tile, 32 * (j % 4)));
  }
}
// acc += x y
template <int kTiles>
HL_DEVICE void IssueTimes(float (&acc)[kTiles][4], const uint32_t (&x)[kTileRows / 16][4],
                          const bf16* y) {
#pragma unroll
  for (int piece = 0; piece < kTiles / 8; ++piece) {
    const uint64_t tile = TileDescriptor(y + piece * kPieceElements);
#pragma unroll
    for (int j = 0; j < kTileRows / 16; ++j)
      WgmmaM64N64K16OfRows(TileOf(acc + 8 * piece), x[j], AdvanceTile(tile, 128 * 16 * j));
  }
}
// FenceRegisters for several tiles.
template <int kTiles>
HL_DEVICE void FenceTiles(float (&d)[kTiles][4]) {
#pragma unroll
  for (int piece = 0; piece < kTiles / 8; ++piece) FenceRegisters(TileOf(d + 8 * piece));
}

#endif  // HL_HAS_WGMMA

// Returns a tensor map over tiles [rows, columns] without gaps, stacked along the rows, in boxes of
// one tile.
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
// A tensor map over the first `num_rows` rows of the batch as one matrix with adjacent heads as
// columns, in boxes of one chunk.
struct RowsMap {
  TensorMap map;
  int64_t batch_rows;  // matrix rows per row of the batch
};
inline RowsMap MapOfRows(const TensorView& view, int num_rows, int seq_len, int heads, int dim,
                         const char* name) {
  const int64_t batch_rows = view.stride_b / view.stride_t;
  TileSource source;
  source.data = view.data;
  source.num_rows = (num_rows - 1) * batch_rows + seq_len;
  source.num_cols = (heads - 1) * view.stride_h + dim;
  source.row_bytes = 2 * view.stride_t;
  source.element_bytes = 2;
  source.box_rows = kTileRows;
  source.name = name;
  return {MakeTensorMap(source), batch_rows};
}
HL_DEVICE int MapRow(const RowsMap& rows, const ChunkEntry& chunk) {
  return static_cast<int>(chunk.row * rows.batch_rows) + chunk.token;
}

}  // namespace halflife::kernels::tiles
