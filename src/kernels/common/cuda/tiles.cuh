// Device functions for tiles of 64 rows: loads into shared memory, fragments for the tensor cores,
// stores of accumulators, and states [K, V] in accumulators, 16 rows per warp.
//
// A bf16 number has one term. An fp32 number x has two bf16 terms: hi is x rounded to bf16, and lo
// is x - hi rounded to bf16, so that hi + lo differs from x by at most 2^-16 |x|. A tile of two
// terms is the tile of hi, followed by the tile of lo. The product of two such numbers is
// hi hi + hi lo + lo hi, three products on tensor cores. The missing lo lo is at most 2^-16 of it.
//
// Within each row of a tile [64, kDim], units of 8 elements are permuted (unit ^ row % 8), so that
// the eight rows that an ldmatrix reads at one column are in different banks.
//
//   LoadTile<64, kThreads>(tile, RowsOf(view, chunk, head, 0, dim), length);
//   LoadFragment<64, false>(a, tile, RowsFirst<64>(FreshLaneId()), 16 * warp, k);
//
//   lane = 4 g + t throughout; of an accumulator d: d[0] d[1] (row g, columns 2t, 2t+1),
//       d[2] d[3] (row g+8, same).
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/common/tensor_view.h"

namespace halflife::kernels::tiles {

constexpr int kTileRows = 64;

// Like LaneId(), but the compiler cannot reuse an earlier value. Indices computed from it inside a
// loop are recomputed there instead of being kept in registers, which are scarcer than
// instructions.
HL_DEVICE int FreshLaneId() { return __shfl_sync(kFullWarp, LaneId(), LaneId()); }
HL_DEVICE int FreshWarpId() { return __shfl_sync(kFullWarp, WarpId(), 0); }
HL_DEVICE int LaneRow() { return LaneId() / 4; }         // g
HL_DEVICE int LaneColumn() { return LaneId() % 4 * 2; }  // 2t

// ---- tiles ----

template <int kDim>
HL_DEVICE int TileOffset(int row, int column) {
  return row * kDim + (((column / 8) ^ (row % 8)) * 8) + column % 8;
}

// Rows of a tensor from one token on, for one head.
struct Rows {
  char* data;        // address of the first loaded element of the first token
  int64_t stride_t;  // elements
  int dim;           // number of elements that exist, starting at `data`
  bool aligned;      // true: rows can be copied in units of 16 bytes
  bool is_wide;      // true: fp32; false: bf16
};
template <typename Entry>
HL_DEVICE Rows RowsOf(const TensorView& view, const Entry& chunk, int head, int column, int dim) {
  const int size = view.dtype == DType::kBF16 ? 2 : 4;
  Rows rows;
  rows.data = static_cast<char*>(view.data) +
              (int64_t{1} * chunk.row * view.stride_b + chunk.token * view.stride_t +
               head * view.stride_h + column) *
                  size;
  rows.stride_t = view.stride_t;
  rows.dim = dim - column;
  rows.aligned = reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && dim % 8 == 0 &&
                 (view.stride_t * size) % 16 == 0;
  rows.is_wide = size == 4;
  return rows;
}

// Starts loading a tile. Rows from `length` on, and columns beyond the tensor's, become zero.
// Unaligned rows are loaded synchronously.
template <int kDim, int kThreads, int kRows = kTileRows>
HL_DEVICE void LoadTile(bf16* tile, const Rows& rows, int length) {
  constexpr int kUnits = kDim / 8, kStep = kThreads / kUnits;
  // The units of a thread are in one column, at equal distances in the source and in the tile.
  static_assert(kThreads % kUnits == 0 && kStep % 8 == 0);
  const bf16* const data = reinterpret_cast<const bf16*>(rows.data);
  if (rows.aligned) {
    const int thread = static_cast<int>(threadIdx.x);
    const int first = thread / kUnits, column = thread % kUnits * 8;
    const int end = column < rows.dim ? length : 0;
    const bf16* source = data + first * rows.stride_t + column;
    bf16* target = tile + TileOffset<kDim>(first, column);
#pragma unroll 2
    for (int row = first; row < kRows; row += kStep) {
      const bool valid = row < end;
      CpAsync16(target, valid ? source : data, valid);
      source += kStep * rows.stride_t;
      target += kStep * kDim;
    }
  } else {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kDim; i += kThreads) {
      const int row = i / kDim, column = i % kDim;
      const bool valid = row < length && column < rows.dim;
      tile[TileOffset<kDim>(row, column)] =
          valid ? data[row * rows.stride_t + column] : ToBf16(0.0f);
    }
  }
}

// The same for a tile of fp32, in the same order of elements.
template <int kDim, int kThreads, int kRows = kTileRows>
HL_DEVICE void LoadTile(float* tile, const Rows& rows, int length) {
  const float* const data = reinterpret_cast<const float*>(rows.data);
  constexpr int kStep = 4 * kThreads;
  static_assert(kRows * kDim % kStep == 0);
#pragma unroll 2
  for (int i = 4 * static_cast<int>(threadIdx.x); i < kRows * kDim; i += kStep) {
    const int row = i / kDim, column = i % kDim;
    float* const target = tile + TileOffset<kDim>(row, column);
    const float* const source = data + row * rows.stride_t + column;
    if (rows.aligned) {
      const bool valid = row < length && column < rows.dim;
      CpAsync16(target, valid ? source : data, valid);
      continue;
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const bool valid = row < length && column + c < rows.dim;
      CpAsync4(target + c, valid ? source + c : data, valid);
    }
  }
}

// Splits x and y into two terms each, packed in pairs.
HL_DEVICE void SplitPair(uint32_t& hi, uint32_t& lo, float x, float y) {
  hi = PackBf16(x, y);
  lo = PackBf16(x - UnpackLo(hi), y - UnpackHi(hi));
}
// Stores or loads one, or stores two adjacent elements of a tile whose terms are `distance` apart.
template <int kTerms>
HL_DEVICE void StoreTerms(bf16* element, int distance, float x) {
  const bf16 hi = ToBf16(x);
  *element = hi;
  if constexpr (kTerms == 2) element[distance] = ToBf16(x - ToFloat(hi));
}
template <int kTerms>
HL_DEVICE float LoadElement(const bf16* element, int distance) {
  const float hi = ToFloat(*element);
  return kTerms == 2 ? hi + ToFloat(element[distance]) : hi;
}
template <int kTerms>
HL_DEVICE void StorePair(bf16* element, int distance, float x, float y) {
  if constexpr (kTerms == 1) {
    *reinterpret_cast<uint32_t*>(element) = PackBf16(x, y);
  } else {
    uint32_t hi, lo;
    SplitPair(hi, lo, x, y);
    *reinterpret_cast<uint32_t*>(element) = hi;
    *reinterpret_cast<uint32_t*>(element + distance) = lo;
  }
}

// Loads rows of fp32 as two terms; otherwise like LoadTile, but synchronous. All loads of a thread
// are issued before the first one is used.
template <int kDim, int kThreads, int kRows>
HL_DEVICE void LoadTwoTerms(bf16* tile, const Rows& rows, int length) {
  constexpr int kUnits = kDim / 8, kStep = kThreads / kUnits, kCount = kRows / kStep;
  static_assert(kThreads % kUnits == 0 && kStep % 8 == 0 && kRows % kStep == 0 && kCount <= 4);
  const int thread = static_cast<int>(threadIdx.x);
  const float* const data = reinterpret_cast<const float*>(rows.data);
  if (!rows.aligned) {
#pragma unroll 1
    for (int i = thread; i < kRows * kDim; i += kThreads) {
      const int row = i / kDim, column = i % kDim;
      const bool valid = row < length && column < rows.dim;
      StoreTerms<2>(tile + TileOffset<kDim>(row, column), kRows * kDim,
                    valid ? data[row * rows.stride_t + column] : 0.0f);
    }
    return;
  }
  const int first = thread / kUnits, column = thread % kUnits * 8;
  const int num_rows = column < rows.dim ? length : 0;
  float4 low[kCount], high[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int row = first + i * kStep;
    low[i] = high[i] = make_float4(0, 0, 0, 0);
    if (row >= num_rows) continue;
    const float* const source = data + row * rows.stride_t + column;
    low[i] = *reinterpret_cast<const float4*>(source);
    high[i] = *reinterpret_cast<const float4*>(source + 4);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    uint4 hi, lo;
    SplitPair(hi.x, lo.x, low[i].x, low[i].y);
    SplitPair(hi.y, lo.y, low[i].z, low[i].w);
    SplitPair(hi.z, lo.z, high[i].x, high[i].y);
    SplitPair(hi.w, lo.w, high[i].z, high[i].w);
    bf16* const target = tile + TileOffset<kDim>(first + i * kStep, column);
    *reinterpret_cast<uint4*>(target) = hi;
    *reinterpret_cast<uint4*>(target + kRows * kDim) = lo;
  }
}
// Loads a tile of bf16 (one term), or of fp32 as two terms.
template <int kTerms, int kDim, int kThreads, int kRows = kTileRows>
HL_DEVICE void LoadTerms(bf16* tile, const Rows& rows, int length) {
  if constexpr (kTerms == 1) {
    LoadTile<kDim, kThreads, kRows>(tile, rows, length);
  } else {
    LoadTwoTerms<kDim, kThreads, kRows>(tile, rows, length);
  }
}
// ---- fragments: A is [16, 16], B is two adjacent [16, 8] tiles ----

// Returns the offset, from the tile's corner, of a lane's row for an ldmatrix. A fragment at (row,
// column), both multiples of 16, is found from it by an XOR: as the permutation is an XOR, a column
// only flips bits. That costs one instruction and no register per column.
template <int kDim>
HL_DEVICE int LaneOffset(int lane, int row_bit, int column_bit) {
  return TileOffset<kDim>(lane % 8 + (lane >> row_bit & 1) * 8, (lane >> column_bit & 1) * 8);
}
// RowsFirst is for tiles stored [m, k] (A) or [k, n] (B, transposed); the other one for tiles
// stored [k, m] (A, transposed) or [n, k] (B).
template <int kDim>
HL_DEVICE int RowsFirst(int lane) {
  return LaneOffset<kDim>(lane, 3, 4);
}
template <int kDim>
HL_DEVICE int ColumnsFirst(int lane) {
  return LaneOffset<kDim>(lane, 4, 3);
}
template <int kDim, bool kTrans>
HL_DEVICE void LoadFragment(uint32_t (&r)[4], const bf16* tile, int lane_offset, int row,
                            int column) {
  LdMatrixX4<kTrans>(r, tile + row * kDim + (lane_offset ^ column));
}

// d0 (columns n .. n+7) and d1 (n+8 .. n+15) += a b
HL_DEVICE void MmaPair(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4],
                       const uint32_t (&b)[4]) {
  const uint32_t b0[2] = {b[0], b[1]};
  const uint32_t b1[2] = {b[2], b[3]};
  MmaM16N8K16(d0, a, b0);
  MmaM16N8K16(d1, a, b1);
}

// Two adjacent accumulators, rounded to bf16, form an A fragment.
HL_DEVICE void PackFragment(uint32_t (&a)[4], const float (&d0)[4], const float (&d1)[4]) {
  a[0] = PackBf16(d0[0], d0[1]);
  a[1] = PackBf16(d0[2], d0[3]);
  a[2] = PackBf16(d1[0], d1[1]);
  a[3] = PackBf16(d1[2], d1[3]);
}

// The same for numbers of kTerms terms, in tiles whose terms are `distance` elements apart.
template <int kTerms>
struct Fragment {
  uint32_t terms[kTerms][4];
};
template <int kDim, bool kTrans, int kTerms>
HL_DEVICE void LoadFragment(Fragment<kTerms>& x, const bf16* tile, int distance, int lane_offset,
                            int row, int column) {
#pragma unroll
  for (int i = 0; i < kTerms; ++i)
    LoadFragment<kDim, kTrans>(x.terms[i], tile + i * distance, lane_offset, row, column);
}
// The same from a tile of bf16, or from a tile of fp32, which is split on the way. kColumnsFirst
// selects between RowsFirst and ColumnsFirst.
template <int kDim, bool kTrans, bool kColumnsFirst>
HL_DEVICE void LoadFragment(Fragment<1>& x, const bf16* tile, int lane, int row, int column) {
  LoadFragment<kDim, kTrans>(x.terms[0], tile,
                             kColumnsFirst ? ColumnsFirst<kDim>(lane) : RowsFirst<kDim>(lane), row,
                             column);
}
template <int kDim, bool kTrans, bool kColumnsFirst>
HL_DEVICE void LoadFragment(Fragment<2>& x, const float* tile, int lane, int row, int column) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int first_row = row + (kColumnsFirst ? i / 2 : i % 2) * 8;
    const int first_column = column + (kColumnsFirst ? i % 2 : i / 2) * 8;
    if constexpr (kTrans) {
      SplitPair(x.terms[0][i], x.terms[1][i],
                tile[TileOffset<kDim>(first_row + 2 * t, first_column + g)],
                tile[TileOffset<kDim>(first_row + 2 * t + 1, first_column + g)]);
    } else {
      const float2 pair = *reinterpret_cast<const float2*>(
          tile + TileOffset<kDim>(first_row + g, first_column + 2 * t));
      SplitPair(x.terms[0][i], x.terms[1][i], pair.x, pair.y);
    }
  }
}
// The element type of tiles that hold operands as they are.
template <int kTerms>
struct Unsplit {
  using Type = float;
};
template <>
struct Unsplit<1> {
  using Type = bf16;
};
// Two adjacent elements of a tile.
HL_DEVICE float2 LoadPair(const float* pair) { return *reinterpret_cast<const float2*>(pair); }
HL_DEVICE float2 LoadPair(const bf16* pair) {
  const uint32_t packed = *reinterpret_cast<const uint32_t*>(pair);
  return make_float2(UnpackLo(packed), UnpackHi(packed));
}

template <int kTerms>
HL_DEVICE void MmaPair(float (&d0)[4], float (&d1)[4], const Fragment<kTerms>& a,
                       const Fragment<kTerms>& b) {
  if constexpr (kTerms == 2) {
    MmaPair(d0, d1, a.terms[1], b.terms[0]);
    MmaPair(d0, d1, a.terms[0], b.terms[1]);
  }
  MmaPair(d0, d1, a.terms[0], b.terms[0]);
}
template <int kTerms>
HL_DEVICE void PackFragment(Fragment<kTerms>& a, const float (&d0)[4], const float (&d1)[4]) {
  if constexpr (kTerms == 1) {
    PackFragment(a.terms[0], d0, d1);
  } else {
    SplitPair(a.terms[0][0], a.terms[1][0], d0[0], d0[1]);
    SplitPair(a.terms[0][1], a.terms[1][1], d0[2], d0[3]);
    SplitPair(a.terms[0][2], a.terms[1][2], d1[0], d1[1]);
    SplitPair(a.terms[0][3], a.terms[1][3], d1[2], d1[3]);
  }
}
// Returns the two numbers in register i of a fragment.
template <int kTerms>
HL_DEVICE float2 FragmentPair(const Fragment<kTerms>& x, int i) {
  float2 pair = make_float2(UnpackLo(x.terms[0][i]), UnpackHi(x.terms[0][i]));
  if constexpr (kTerms == 2) {
    pair.x += UnpackLo(x.terms[1][i]);
    pair.y += UnpackHi(x.terms[1][i]);
  }
  return pair;
}

template <int kTiles>
HL_DEVICE void Clear(float (&d)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[n][i] = 0;
  }
}
template <int kTiles>
HL_DEVICE void Add(float (&d)[kTiles][4], const float (&x)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[n][i] += x[n][i];
  }
}
template <int kTiles>
HL_DEVICE void Scale(float (&d)[kTiles][4], float factor) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) d[n][i] *= factor;
  }
}
// Returns the column sum, the same in every lane of the column (four lanes apart).
HL_DEVICE float ColumnSum(float x) {
#pragma unroll
  for (int offset = 4; offset < 32; offset *= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
  return x;
}
// Returns the row sum, the same in the four lanes of the row.
HL_DEVICE float RowSum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  return x + __shfl_xor_sync(kFullWarp, x, 2);
}

// Sums x[c] over the lanes that differ in the bits below kCount, for all kCount columns c; lane c
// gets the sum of column c. Each step halves the number of columns per lane.
template <int kWidth, int kCount>
HL_DEVICE void HalveColumns(float (&x)[kCount]) {
  const bool upper = (LaneId() & kWidth) != 0;
#pragma unroll
  for (int c = 0; c < kWidth; ++c) {
    const float kept = upper ? x[c + kWidth] : x[c];
    const float sent = upper ? x[c] : x[c + kWidth];
    x[c] = kept + __shfl_xor_sync(kFullWarp, sent, kWidth);
  }
  if constexpr (kWidth > 1) HalveColumns<kWidth / 2>(x);
}
template <int kCount>
HL_DEVICE float SumOverLanes(float (&x)[kCount]) {
  HalveColumns<kCount / 2>(x);
  return x[0];
}

// Multiplies column n of the accumulators by factor[n].
template <int kTiles>
HL_DEVICE void ScaleAccumulatorColumns(float (&d)[kTiles][4], const float* factor) {
  const int lane = FreshLaneId();
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float f0 = factor[8 * n + lane % 4 * 2], f1 = factor[8 * n + lane % 4 * 2 + 1];
    d[n][0] *= f0;
    d[n][1] *= f1;
    d[n][2] *= f0;
    d[n][3] *= f1;
  }
}
// Multiplies row r of the accumulators by factor[r], for the warp's 16 rows.
template <int kTiles>
HL_DEVICE void ScaleAccumulatorRows(float (&d)[kTiles][4], const float* factor) {
  const int lane = FreshLaneId();
  const float top = factor[lane / 4], bottom = factor[lane / 4 + 8];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    d[n][0] *= top;
    d[n][1] *= top;
    d[n][2] *= bottom;
    d[n][3] *= bottom;
  }
}

// ---- stores ----

// Transposes a 4 x 4 matrix over four adjacent lanes: word j of lane i becomes word i of lane j.
HL_DEVICE void TransposeQuad(uint32_t (&words)[4]) {
  const bool odd = LaneId() % 2 != 0, upper = LaneId() % 4 / 2 != 0;
#pragma unroll
  for (int n = 0; n < 4; n += 2) {
    const uint32_t got = __shfl_xor_sync(kFullWarp, odd ? words[n] : words[n + 1], 1);
    words[n] = odd ? got : words[n];
    words[n + 1] = odd ? words[n + 1] : got;
  }
  // In even lanes, words n and n + 1 now belong to tile n (the lane's own and the neighbour's); in
  // odd lanes, to tile n + 1.
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint32_t got = __shfl_xor_sync(kFullWarp, upper ? words[n] : words[n + 2], 2);
    words[n] = upper ? got : words[n];
    words[n + 2] = upper ? words[n + 2] : got;
  }
}
// Row g (half 1: row g + 8) of four adjacent accumulators: lane t gets the 8 columns from 8 t on.
HL_DEVICE uint4 RowOfQuad(const float (*d)[4], int half) {
  uint32_t words[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) words[n] = PackBf16(d[n][2 * half], d[n][2 * half + 1]);
  TransposeQuad(words);
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Exchanges values between the lanes of rows g and g ^ 1. From (row g, columns 2t, 2t+1), a lane
// keeps column 2t + g % 2 of rows g & ~1 and (g & ~1) + 1.
HL_DEVICE float2 TransposePair(float d0, float d1) {
  const bool odd = LaneRow() % 2 != 0;
  const float other = __shfl_xor_sync(kFullWarp, odd ? d0 : d1, 4);
  return odd ? make_float2(other, d1) : make_float2(d0, other);
}

// Copies [kRows, 16 columns], from `column` on, from a warp's staging buffer [kRows, 16] to a
// tensor. Rows of 32 bytes are whole sectors, so warps need not cooperate.
template <int kRows = kTileRows>
HL_DEVICE void FlushTransposed(const bf16* stage, const Rows& rows, int length, int column) {
  const int lane = FreshLaneId();
  __syncwarp();
  bf16* const data = reinterpret_cast<bf16*>(rows.data) + column;
  const int columns = rows.dim - column;
  if (rows.aligned) {
#pragma unroll 1
    for (int i = lane; i < kRows * 2; i += 32) {
      const int row = i / 2, c = i % 2 * 8;
      if (row < length && c < columns)
        *reinterpret_cast<uint4*>(data + row * rows.stride_t + c) =
            *reinterpret_cast<const uint4*>(stage + row * 16 + c);
    }
  } else {
#pragma unroll 1
    for (int i = lane; i < kRows * 16; i += 32) {
      const int row = i / 16, c = i % 16;
      if (row < length && c < columns) data[row * rows.stride_t + c] = stage[i];
    }
  }
  __syncwarp();  // the next store overwrites the stage
}
// Stores values that a warp holds transposed, through its staging buffer of kRows tokens.
template <int kRows>
HL_DEVICE void StoreTransposed(const float (&d)[kTileRows / 8][4], bf16* stage, const Rows& rows,
                               int length, int column) {
  const int lane = FreshLaneId();
#pragma unroll
  for (int first = 0; first < kTileRows; first += kRows) {
#pragma unroll
    for (int n = 0; n < kRows / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&tile)[4] = d[first / 8 + n];
        const float2 pair = TransposePair(tile[2 * half], tile[2 * half + 1]);
        const int row = 8 * n + lane % 4 * 2 + lane / 4 % 2;
        *reinterpret_cast<uint32_t*>(stage + row * 16 + lane / 8 * 2 + half * 8) =
            PackBf16(pair.x, pair.y);
      }
    }
    Rows part = rows;
    part.data += first * rows.stride_t * static_cast<int>(sizeof(bf16));
    FlushTransposed<kRows>(stage, part, length - first, column);
  }
}

// ---- states, 16 rows per warp ----

// A warp's part of a contiguous matrix [rows, columns] that accumulators hold (kTransposed: as its
// transpose).
struct StateRows {
  int rows, columns;  // of the matrix
  // Places of the warp's first row and the tile's first column; kTransposed: the other way round.
  int row, column;
};
HL_DEVICE float StateValue(const float* data) { return *data; }
HL_DEVICE float StateValue(const bf16* data) { return ToFloat(*data); }

// Calls visit(accumulator element, pointer to its element in memory) for existing elements.
// Pointers advance by constants, because 64-bit addresses of all elements at once would take more
// registers than the state.
template <bool kTransposed, int kTiles, typename T, typename Visit>
HL_DEVICE void VisitState(float (&d)[kTiles][4], T* data, const StateRows& shape,
                          const Visit& visit) {
  const int lane = FreshLaneId();
  const int first_row = shape.row + (kTransposed ? lane % 4 * 2 : lane / 4);
  const int first_column = shape.column + (kTransposed ? lane / 4 : lane % 4 * 2);
  T* element = data + (first_row * shape.columns + first_column);
  // Distances to the next tile, eight accumulator rows, and one accumulator column.
  const int tile = kTransposed ? 8 * shape.columns : 8;
  const int down = kTransposed ? 8 : 8 * shape.columns, right = kTransposed ? shape.columns : 1;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + (kTransposed ? 8 * n + i % 2 : i / 2 * 8);
      const int column = first_column + (kTransposed ? i / 2 * 8 : 8 * n + i % 2);
      if (row < shape.rows && column < shape.columns)
        visit(d[n][i], element + (i / 2 * down + i % 2 * right));
    }
    element += tile;
  }
}
template <bool kTransposed, int kTiles, typename T>
HL_DEVICE void LoadState(float (&d)[kTiles][4], const T* data, const StateRows& shape) {
  Clear(d);
  VisitState<kTransposed>(d, data, shape,
                          [](float& x, const T* element) { x = StateValue(element); });
}
template <bool kTransposed, int kTiles, typename T>
HL_DEVICE void AddState(float (&d)[kTiles][4], const T* data, const StateRows& shape) {
  VisitState<kTransposed>(d, data, shape,
                          [](float& x, const T* element) { x += StateValue(element); });
}
template <bool kTransposed, int kTiles>
HL_DEVICE void StoreState(float (&d)[kTiles][4], float* data, const StateRows& shape) {
  VisitState<kTransposed>(d, data, shape, [](float& x, float* element) { *element = x; });
}

}  // namespace halflife::kernels::tiles
