// Products of small matrices that are in cache. Compiled per instruction set
// (kernels/common/cpu/isa_target.h). Matrices are stored in "panels" of 32 columns, and a panel's
// rows follow one another:
//
//   element (row, column) = data[(column / 32) panel + 32 row + column % 32],
//
// so that every stride within a product is a constant for all sizes, and no two rows map to the
// same cache set. The left operand may be read transposed at no cost, because its elements are
// broadcast. The rows of the right operand must run along the reduction.
//
//   ForTiles<Tile<float>>(rows, columns, [&](int row, int column) HL_INLINE_LAMBDA {
//     Tile<float> tile(ahead);
//     tile.Clear();
//     tile.MultiplyAdd(a, row, b, column, depth);
//     tile.Store(c, row, column);
//   });
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/common/cpu/rows_ahead.h"

#define HL_INLINE_LAMBDA __attribute__((always_inline))

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

constexpr int kPanel = 32;

template <typename T>
struct VecOf {
  typedef T Aligned __attribute__((vector_size(HL_SIMD_BYTES), may_alias));
  typedef T Unaligned __attribute__((vector_size(HL_SIMD_BYTES), may_alias, aligned(sizeof(T))));
};
template <typename T>
using Vec = typename VecOf<T>::Aligned;
template <typename T>
constexpr int kLanes = HL_SIMD_BYTES / static_cast<int>(sizeof(T));

template <typename T>
HL_INLINE Vec<T>& At(T* address) {
  return *reinterpret_cast<Vec<T>*>(address);
}
template <typename T>
HL_INLINE const Vec<T>& At(const T* address) {
  return *reinterpret_cast<const Vec<T>*>(address);
}
template <typename T>
HL_INLINE Vec<T> LoadUnaligned(const T* address) {
  return *reinterpret_cast<const typename VecOf<T>::Unaligned*>(address);
}
template <typename T>
HL_INLINE void StoreUnaligned(T* address, const Vec<T>& x) {
  *reinterpret_cast<typename VecOf<T>::Unaligned*>(address) = x;
}
template <typename T>
HL_INLINE T Sum(const Vec<T>& x) {
  T lanes[kLanes<T>];
  __builtin_memcpy(lanes, &x, sizeof(lanes));
#pragma GCC unroll 5
  for (int half = kLanes<T> / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

// Returns 0, 1, 2, ...
template <typename T>
HL_INLINE Vec<T> LaneNumbers() {
  Vec<T> lanes = {};
  for (int i = 0; i < kLanes<T>; ++i) lanes[i] = static_cast<T>(i);
  return lanes;
}

// A matrix in panels. Consecutive panels are `panel` elements apart.
template <typename T>
struct Panels {
  T* data = nullptr;
  int panel = 0;

  HL_INLINE T* Row(int row, int column) const {
    return data + (column / kPanel) * panel + row * kPanel + column % kPanel;
  }
};

// Accumulators of kRows x kVecs vectors. 16 or more hide the latency of two multiply-add units.
// Instruction sets with fewer registers use fewer rows.
template <typename T, int kRowsOf, int kVecsOf>
struct TileOf {
  static constexpr int kRows = kRowsOf, kVecs = kVecsOf, kColumns = kVecs * kLanes<T>;

  Vec<T> sums[kRows][kVecs];
  RowsAhead& ahead;

  HL_INLINE explicit TileOf(RowsAhead& rows_ahead) : ahead(rows_ahead) {}

  HL_INLINE void Clear() {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int n = 0; n < kVecs; ++n) sums[r][n] = Vec<T>{};
  }

  // Adds A[row .., begin .. end) B[begin .. end, column ..). `begin` must be a multiple of 32.
  HL_INLINE void MultiplyAdd(const Panels<T>& a, int row, const Panels<T>& b, int column, int begin,
                             int end) {
    for (int k = begin; k < end; k += kPanel) {
      const int depth = end - k < kPanel ? end - k : kPanel;
      Accumulate<kPanel, 1>(a.Row(row, k), b.Row(k, column), depth);
    }
  }
  // Adds A[begin .. end), row ..)^T B[begin .. end, column ..): the columns of A are the rows of
  // the product.
  HL_INLINE void MultiplyAddTransposed(const Panels<T>& a, int row, const Panels<T>& b, int column,
                                       int begin, int end) {
    Accumulate<1, kPanel>(a.Row(begin, row), b.Row(begin, column), end - begin);
  }
  // The same for A stored in strips of kRows columns, [depth, kRows], and B in a panel, [depth,
  // 32].
  HL_INLINE void MultiplyAddStrip(const T* strip, const T* panel, int depth) {
    Accumulate<1, kRows>(strip, panel, depth);
  }
  // Adds A B for kRows rows of A, `stride` elements apart, and columns of B in their own panel,
  // [depth, kColumns]. It prefetches nothing: the hardware prefetcher predicts whole contiguous
  // rows.
  HL_INLINE void MultiplyAddRows(const T* a, int64_t stride, const T* panel, int depth) {
#pragma GCC unroll 4
    for (int k = 0; k < depth; ++k) {
      Vec<T> right[kVecs];
#pragma GCC unroll 2
      for (int n = 0; n < kVecs; ++n) right[n] = At(panel + k * kColumns + n * kLanes<T>);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const T left = a[r * stride + k];
#pragma GCC unroll 2
        for (int n = 0; n < kVecs; ++n) sums[r][n] += left * right[n];
      }
    }
  }
  // Adds A[row .., row ..) B[row .., column ..) for a square of kRows, skipping the elements above
  // A's diagonal. Multiplying by zeros there would spread a NaN in B to rows that do not depend on
  // it.
  HL_INLINE void MultiplyAddLower(const Panels<T>& a, int row, const Panels<T>& b, int column) {
    MultiplyAddTriangle<true, kPanel, 1>(a, row, b, column);
  }
  // The same with A transposed, so that the elements on or above A's diagonal count.
  HL_INLINE void MultiplyAddLowerTransposed(const Panels<T>& a, int row, const Panels<T>& b,
                                            int column) {
    MultiplyAddTriangle<true, 1, kPanel>(a, row, b, column);
  }
  HL_INLINE void MultiplyAddUpperTransposed(const Panels<T>& a, int row, const Panels<T>& b,
                                            int column) {
    MultiplyAddTriangle<false, 1, kPanel>(a, row, b, column);
  }

  template <typename Function>  // function(vec&, row of the tile, column of the tile)
  HL_INLINE void ForEach(Function function) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int n = 0; n < kVecs; ++n) function(sums[r][n], r, n * kLanes<T>);
  }
  HL_INLINE void ScaleRows(const T* factors) {
    ForEach([&](Vec<T>& x, int r, int) HL_INLINE_LAMBDA { x *= factors[r]; });
  }
  HL_INLINE void Store(const Panels<T>& c, int row, int column) {
    T* base = c.Row(row, column);
    ForEach([&](Vec<T>& x, int r, int j) HL_INLINE_LAMBDA { At(base + r * kPanel + j) = x; });
  }

 private:
  template <int kRowStride, int kDepthStride>
  HL_INLINE void Accumulate(const T* a, const T* b, int depth) {
    for (int k = 0; k < depth; ++k) {
      ahead.Step();
      Vec<T> right[kVecs];
#pragma GCC unroll 2
      for (int n = 0; n < kVecs; ++n) right[n] = At(b + k * kPanel + n * kLanes<T>);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const T left = a[r * kRowStride + k * kDepthStride];
#pragma GCC unroll 2
        for (int n = 0; n < kVecs; ++n) sums[r][n] += left * right[n];
      }
    }
  }
  template <bool kLower, int kRowStride, int kDepthStride>
  HL_INLINE void MultiplyAddTriangle(const Panels<T>& a, int row, const Panels<T>& b, int column) {
#pragma GCC unroll 1
    for (int k = 0; k < kRows; ++k) ahead.Step();
    AccumulateTriangle<kLower, kRowStride, kDepthStride>(a.Row(row, row), b.Row(row, column),
                                                         std::make_integer_sequence<int, kRows>());
  }
  // Unrolled by templates: with a variable number of rows the compiler would keep the accumulators
  // in memory.
  template <bool kLower, int kRowStride, int kDepthStride, int... kStep>
  HL_INLINE void AccumulateTriangle(const T* a, const T* b, std::integer_sequence<int, kStep...>) {
    (TriangleStep<(kLower ? kStep : 0), (kLower ? kRows : kStep + 1), kRowStride>(
         a + kStep * kDepthStride, b + kStep * kPanel),
     ...);
  }
  template <int kFirst, int kEnd, int kRowStride>
  HL_INLINE void TriangleStep(const T* a, const T* b) {
    Vec<T> right[kVecs];
#pragma GCC unroll 2
    for (int n = 0; n < kVecs; ++n) right[n] = At(b + n * kLanes<T>);
#pragma GCC unroll 16
    for (int r = kFirst; r < kEnd; ++r) {
      const T left = a[r * kRowStride];
#pragma GCC unroll 2
      for (int n = 0; n < kVecs; ++n) sums[r][n] += left * right[n];
    }
  }
};
// 8 x 32 with 512-bit vectors (fp64: 8 x 16), 4 x 16 with 256-bit vectors.
template <typename T>
using Tile = TileOf<T, HL_SIMD_BYTES == 64 ? 8 : 4, 2>;
// For triangular products, within squares of 16 x 16; with 512-bit vectors one tile is a whole
// square.
template <typename T>
using SquareTile = TileOf<T, HL_SIMD_BYTES == 64 ? int(64 / sizeof(T)) : 4,
                          HL_SIMD_BYTES == 64 ? 16 / kLanes<T> : 2>;

// Calls body(row, column) for each tile of a [rows, columns] matrix. The order keeps a panel of the
// right operand in the L1 cache.
template <typename Tile, typename Body>
HL_INLINE void ForTiles(int rows, int columns, Body body) {
  for (int column = 0; column < columns; column += Tile::kColumns)
    for (int row = 0; row < rows; row += Tile::kRows) body(row, column);
}
// The same for the tiles that have elements on or below the diagonal.
template <typename Tile, typename Body>
HL_INLINE void ForLowerTiles(int rows, Body body) {
  for (int column = 0; column < rows; column += Tile::kColumns)
    for (int row = column / Tile::kRows * Tile::kRows; row < rows; row += Tile::kRows)
      body(row, column);
}

// Exchanges lanes of two vectors across blocks of kDistance: one step of a transpose.
template <typename T, int kDistance>
struct Exchange {
  using Index = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  static constexpr int kCount = kLanes<T>;
  template <int... kLane>
  static HL_INLINE void Apply(Vec<T>& a, Vec<T>& b, std::integer_sequence<int, kLane...>) {
    const Vec<Index> low = {((kLane & kDistance) ? kCount + kLane - kDistance : kLane)...};
    const Vec<Index> high = {((kLane & kDistance) ? kCount + kLane : kLane + kDistance)...};
    const Vec<T> first = __builtin_shuffle(a, b, low);
    b = __builtin_shuffle(a, b, high);
    a = first;
  }
};
template <typename T, int kDistance>
HL_INLINE void ExchangeAll(Vec<T> (&rows)[kLanes<T>]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i)
    if ((i & kDistance) == 0)
      Exchange<T, kDistance>::Apply(rows[i], rows[i + kDistance],
                                    std::make_integer_sequence<int, kLanes<T>>());
  if constexpr (kDistance > 1) ExchangeAll<T, kDistance / 2>(rows);
}

// Computes to [columns, rows] = from [rows, columns]^T. Both sizes must be multiples of the number
// of lanes.
template <typename T>
void Transpose(const Panels<T>& from, const Panels<T>& to, int rows, int columns) {
  constexpr int kSize = kLanes<T>;
  for (int column = 0; column < columns; column += kSize) {
    for (int row = 0; row < rows; row += kSize) {
      Vec<T> block[kSize];
      const T* source = from.Row(row, column);
#pragma GCC unroll 16
      for (int i = 0; i < kSize; ++i) block[i] = At(source + i * kPanel);
      ExchangeAll<T, kSize / 2>(block);
      T* target = to.Row(column, row);
#pragma GCC unroll 16
      for (int i = 0; i < kSize; ++i) At(target + i * kPanel) = block[i];
    }
  }
}

// e^x without a call of libm: fp32 to 2 ulp, 0 below -87 (and for -inf), infinity above 88.72.
HL_INLINE Vec<float> Exp(const Vec<float>& x) {
  const Vec<float> zero = {};
  const Vec<float> low = x < -87.0f ? zero - 87.0f : x;
  const Vec<float> clamped = low > 88.0f ? zero + 88.0f : low;
  // Its low bits hold round(x / ln 2).
  const Vec<float> shifted = clamped * 1.44269504f + 12582912.0f;
  const Vec<float> n = shifted - 12582912.0f;
  const Vec<float> r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  Vec<float> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Vec<int32_t> exponent = ((Vec<int32_t>)shifted - 0x4B400000 + 127) << 23;
  const Vec<float> y = p * (Vec<float>)exponent;
  const Vec<float> bounded = x > 88.72f ? zero + __builtin_inff() : y;
  return x < -87.0f ? zero : bounded;
}
inline Vec<double> Exp(const Vec<double>& x) {
  Vec<double> y = {};
  for (int i = 0; i < kLanes<double>; ++i) y[i] = __builtin_exp(x[i]);
  return y;
}

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
