// Products of matrices in shared memory, by one warp on the tensor cores, for both operand types:
//
//   bf16   mma.m16n8k16, operands as they are
//   fp32   mma.m16n8k8 in TF32, three products per pair of operands: x = high + low with two TF32
//          numbers, and x y is computed as high high + high low + low high. The neglected low low
//          is below 2^-22 of |x y|, the size of fp32's own rounding. Numbers t and t + 4 of a step
//          of 8 are columns 2t and 2t + 1, for A and B alike, so that accumulators have the layout
//          of an A operand, as with bf16.
//
//   float d[4][4];                                          // [16, 32] in accumulators
//   Clear(d);
//   MultiplyAdd<2>(d, q, 16 * warp, Transposed(k), 32 * n, 0, 128);  // d += q k^T over 128 columns
//   ForPairs(d, 16 * warp, 32 * n, [&](int row, int column, float& x, float& y) { ... });
//
// lane = 4 g + t; of an accumulator d: d[0] d[1] (row g, columns 2t, 2t+1), d[2] d[3] (row g+8).
#pragma once

#include <type_traits>

#include "kernels/common/cuda/tiles.cuh"
#include "kernels/common/host_device.h"

namespace halflife::kernels::delta {

using tiles::Clear;

// A matrix in shared memory. Rows are 16 bytes longer than kCols elements, so that the eight rows
// that an ldmatrix reads at one column are in different banks.
template <typename T_, int kCols_>
struct Matrix {
  using T = T_;
  static constexpr int kCols = kCols_, kPitch = kCols + 16 / static_cast<int>(sizeof(T));
  static HL_EVERYWHERE constexpr int Elements(int rows) { return rows * kPitch; }
  static HL_EVERYWHERE constexpr int Bytes(int rows) {
    return Elements(rows) * static_cast<int>(sizeof(T));
  }

  T* data;

  HL_DEVICE T& At(int row, int column) const { return data[row * kPitch + column]; }
};
// As an operand of a product: element (i, j) is matrix.At(j, i).
template <typename M>
struct TransposedMatrix {
  using T = typename M::T;

  M matrix;
};
template <typename T, int kCols>
HL_DEVICE TransposedMatrix<Matrix<T, kCols>> Transposed(Matrix<T, kCols> matrix) {
  return {matrix};
}

// ---- fragments of a step of 16 over the summed index: A [16, 16], B [16, 16] ----

template <typename T>
struct FragmentA;
template <typename T>
struct FragmentB;
template <>
struct FragmentA<bf16> {
  uint32_t x[4];
};
template <>
struct FragmentB<bf16> {
  uint32_t x[4];
};
template <>
struct FragmentA<float> {
  uint32_t high[2][4], low[2][4];  // [step of 8]
};
template <>
struct FragmentB<float> {
  uint32_t high[2][2][2], low[2][2][2];  // [step of 8][8 columns]
};

HL_DEVICE void SplitTf32(float x, uint32_t& high, uint32_t& low) {
  high = ToTf32(x);
  low = ToTf32(x - __uint_as_float(high));
}

template <int kCols>
HL_DEVICE void LoadA(FragmentA<bf16>& a, Matrix<bf16, kCols> m, int row, int k) {
  const int lane = LaneId();
  LdMatrixX4<false>(a.x, &m.At(row + lane % 16, k + 8 * (lane / 16)));
}
template <int kCols>
HL_DEVICE void LoadA(FragmentA<bf16>& a, TransposedMatrix<Matrix<bf16, kCols>> m, int row, int k) {
  const int lane = LaneId();
  LdMatrixX4<true>(a.x, &m.matrix.At(k + lane % 8 + 8 * (lane / 16), row + 8 * (lane / 8 % 2)));
}
template <int kCols>
HL_DEVICE void LoadB(FragmentB<bf16>& b, Matrix<bf16, kCols> m, int k, int column) {
  const int lane = LaneId();
  LdMatrixX4<true>(b.x, &m.At(k + lane % 16, column + 8 * (lane / 16)));
}
template <int kCols>
HL_DEVICE void LoadB(FragmentB<bf16>& b, TransposedMatrix<Matrix<bf16, kCols>> m, int k,
                     int column) {
  const int lane = LaneId();
  LdMatrixX4<false>(b.x, &m.matrix.At(column + lane % 8 + 8 * (lane / 16), k + 8 * (lane / 8 % 2)));
}

template <int kCols>
HL_DEVICE float ElementOf(Matrix<float, kCols> m, int row, int column) {
  return m.At(row, column);
}
template <int kCols>
HL_DEVICE float ElementOf(TransposedMatrix<Matrix<float, kCols>> m, int row, int column) {
  return m.matrix.At(column, row);
}
template <typename M>
HL_DEVICE void LoadA(FragmentA<float>& a, M m, int row, int k) {
  const int g = LaneId() / 4, t = LaneId() % 4;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      SplitTf32(ElementOf(m, row + g + 8 * (i % 2), k + 8 * step + 2 * t + i / 2), a.high[step][i],
                a.low[step][i]);
  }
}
template <typename M>
HL_DEVICE void LoadB(FragmentB<float>& b, M m, int k, int column) {
  const int g = LaneId() / 4, t = LaneId() % 4;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        SplitTf32(ElementOf(m, k + 8 * step + 2 * t + i, column + 8 * n + g), b.high[step][n][i],
                  b.low[step][n][i]);
    }
  }
}

HL_DEVICE void Multiply(float (&d0)[4], float (&d1)[4], const FragmentA<bf16>& a,
                        const FragmentB<bf16>& b) {
  tiles::MmaPair(d0, d1, a.x, b.x);
}
HL_DEVICE void Multiply(float (&d0)[4], float (&d1)[4], const FragmentA<float>& a,
                        const FragmentB<float>& b) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    MmaTf32M16N8K8(d0, a.low[step], b.high[step][0]);
    MmaTf32M16N8K8(d1, a.low[step], b.high[step][1]);
    MmaTf32M16N8K8(d0, a.high[step], b.low[step][0]);
    MmaTf32M16N8K8(d1, a.high[step], b.low[step][1]);
    MmaTf32M16N8K8(d0, a.high[step], b.high[step][0]);
    MmaTf32M16N8K8(d1, a.high[step], b.high[step][1]);
  }
}

// d [16, 16 kPairs] += rows `row`.. of A times columns `column`.. of B, summed over [begin, end),
// multiples of 16. A and B are each a Matrix or a TransposedMatrix, with elements of one type.
template <int kPairs, typename A, typename B>
HL_DEVICE void MultiplyAdd(float (&d)[2 * kPairs][4], A a, int row, B b, int column, int begin,
                           int end) {
  using T = typename A::T;
  static_assert(std::is_same_v<T, typename B::T>);
#pragma unroll 2
  for (int k = begin; k < end; k += 16) {
    FragmentA<T> left;
    LoadA(left, a, row, k);
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      FragmentB<T> right;
      LoadB(right, b, k, column + 16 * n);
      Multiply(d[2 * n], d[2 * n + 1], left, right);
    }
  }
}

// Calls visit(row, column, x, y) for the lane's pairs of accumulators: x is element (row, column),
// y is (row, column + 1).
template <int kTiles, typename Visit>
HL_DEVICE void ForPairs(float (&d)[kTiles][4], int row, int column, const Visit& visit) {
  const int g = LaneId() / 4, t = LaneId() % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      visit(row + g + 8 * half, column + 8 * n + 2 * t, d[n][2 * half], d[n][2 * half + 1]);
  }
}

// ---- elements ----

template <typename T>
HL_DEVICE T ToType(float x);
template <>
HL_DEVICE float ToType<float>(float x) {
  return x;
}
template <>
HL_DEVICE bf16 ToType<bf16>(float x) {
  return ToBf16(x);
}
// Stores two neighbours, at an address aligned to two elements.
HL_DEVICE void StorePair(float* to, float x, float y) {
  *reinterpret_cast<float2*>(to) = make_float2(x, y);
}
HL_DEVICE void StorePair(bf16* to, float x, float y) {
  *reinterpret_cast<uint32_t*>(to) = PackBf16(x, y);
}
HL_DEVICE float2 LoadPair(const float* from) { return *reinterpret_cast<const float2*>(from); }
HL_DEVICE float2 LoadPair(const bf16* from) {
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(from);
  return make_float2(UnpackLo(pair), UnpackHi(pair));
}

// ---- loads ----

// Calls copy(i) for the thread's numbers i below kCount. kUnroll: the number of copies whose
// addresses are computed at once, and kept in registers in a loop. 0: the compiler chooses.
template <int kCount, int kThreads, int kUnroll, typename Copy>
HL_DEVICE void ForCopies(const Copy& copy) {
  if constexpr (kUnroll == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < kCount; i += kThreads) copy(i);
  } else {
#pragma unroll kUnroll
    for (int i = static_cast<int>(threadIdx.x); i < kCount; i += kThreads) copy(i);
  }
}

// Starts loading [kRows, kCols] of a tensor. Rows from `length` on, and columns beyond the
// tensor's, become zero. Unaligned rows are loaded synchronously.
template <int kRows, int kThreads, int kUnroll = 0, typename T, int kCols>
HL_DEVICE void LoadRows(Matrix<T, kCols> to, const tiles::Rows& rows, int length) {
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T)), kUnits = kCols / kUnit;
  const T* const data = reinterpret_cast<const T*>(rows.data);
  if (rows.aligned) {
    ForCopies<kRows * kUnits, kThreads, kUnroll>([&](int i) {
      const int row = i / kUnits, column = i % kUnits * kUnit;
      const bool valid = row < length && column < rows.dim;
      CpAsync16(&to.At(row, column), valid ? data + row * rows.stride_t + column : data, valid);
    });
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kCols; i += kThreads) {
      const int row = i / kCols, column = i % kCols;
      to.At(row, column) =
          row < length && column < rows.dim ? data[row * rows.stride_t + column] : ToType<T>(0.0f);
    }
  }
}
// The same from a padded array of the workspace, whose rows are aligned. Columns from `columns` on
// become zero.
template <int kRows, int kThreads, int kUnroll = 0, typename T, int kCols>
HL_DEVICE void LoadArray(Matrix<T, kCols> to, const T* data, int64_t stride, int columns = kCols) {
  constexpr int kUnit = 16 / static_cast<int>(sizeof(T)), kUnits = kCols / kUnit;
  ForCopies<kRows * kUnits, kThreads, kUnroll>([&](int i) {
    const int row = i / kUnits, column = i % kUnits * kUnit;
    const bool valid = column < columns;
    CpAsync16(&to.At(row, column), valid ? data + row * stride + column : data, valid);
  });
}

}  // namespace halflife::kernels::delta
