// Steps of the backward on accumulators, in addition to products.cuh: products whose first operand
// is in accumulators or is changed while it is loaded, sums along rows, and stores to tensors.
#pragma once

#include "kernels/delta_rule/cuda/products.cuh"

namespace halflife::kernels::delta {

// Prevents the compiler from moving loads from shared memory up past this point. Loading the
// operands of several steps at once would need more registers than there are.
HL_DEVICE void KeepLoadsApart() { __syncwarp(); }

struct Range {
  int begin, end;
};

// ---- products ----

// Packs two adjacent accumulators as the operand A.
HL_DEVICE void ToFragmentA(FragmentA<bf16>& a, const float (&d0)[4], const float (&d1)[4]) {
  a.x[0] = PackBf16(d0[0], d0[1]);
  a.x[1] = PackBf16(d0[2], d0[3]);
  a.x[2] = PackBf16(d1[0], d1[1]);
  a.x[3] = PackBf16(d1[2], d1[3]);
}
HL_DEVICE void ToFragmentA(FragmentA<float>& a, const float (&d0)[4], const float (&d1)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int from = i % 2 * 2 + i / 2;  // (g, 2t), (g + 8, 2t), (g, 2t + 1), (g + 8, 2t + 1)
    SplitTf32(d0[from], a.high[0][i], a.low[0][i]);
    SplitTf32(d1[from], a.high[1][i], a.low[1][i]);
  }
}

// d [16, 16 kPairs] += x B, columns `column` .. of B. The operand x [16, 16 kSteps] is in
// accumulators.
template <int kPairs, int kSteps, typename B>
HL_DEVICE void MultiplyAccumulators(float (&d)[2 * kPairs][4], const float (&x)[2 * kSteps][4], B b,
                                    int column) {
  using T = typename B::T;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    FragmentA<T> left;
    ToFragmentA(left, x[2 * k], x[2 * k + 1]);
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      FragmentB<T> right;
      LoadB(right, b, 16 * k, column + 16 * n);
      Multiply(d[2 * n], d[2 * n + 1], left, right);
    }
  }
}

// Replaces each element of the fragment at (row, k) by change(element, its row, its column).
template <typename Change>
HL_DEVICE void ChangeElements(FragmentA<bf16>& a, int row, int k, const Change& change) {
  const int g = LaneId() / 4, t = LaneId() % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + g + i % 2 * 8, c = k + 2 * t + i / 2 * 8;
    a.x[i] = PackBf16(change(UnpackLo(a.x[i]), r, c), change(UnpackHi(a.x[i]), r, c + 1));
  }
}
template <typename Change>
HL_DEVICE void ChangeElements(FragmentA<float>& a, int row, int k, const Change& change) {
  const int g = LaneId() / 4, t = LaneId() % 4;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = __uint_as_float(a.high[step][i]) + __uint_as_float(a.low[step][i]);
      SplitTf32(change(x, row + g + i % 2 * 8, k + 8 * step + 2 * t + i / 2), a.high[step][i],
                a.low[step][i]);
    }
  }
}
// MultiplyAdd, with change(element, row, k) in place of the elements of A.
template <int kPairs, typename A, typename B, typename Change>
HL_DEVICE void MultiplyChanged(float (&d)[2 * kPairs][4], A a, int row, B b, int column,
                               Range range, const Change& change) {
  using T = typename A::T;
#pragma unroll 1
  for (int k = range.begin; k < range.end; k += 16) {
    FragmentA<T> left;
    LoadA(left, a, row, k);
    ChangeElements(left, row, k, change);
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      FragmentB<T> right;
      LoadB(right, b, k, column + 16 * n);
      Multiply(d[2 * n], d[2 * n + 1], left, right);
    }
  }
}

// ---- rows ----

// Calls visit(half, row, column, x, y) for the lane's pairs of accumulators. The lane has two rows:
// `half` 0 and 1, a constant in each call.
template <int kTiles, typename Visit>
HL_DEVICE void ForRowPairs(float (&d)[kTiles][4], int row, int column, const Visit& visit) {
  const int g = LaneId() / 4, t = LaneId() % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      visit(half, row + g + 8 * half, column + 8 * n + 2 * t, d[n][2 * half], d[n][2 * half + 1]);
  }
}
// Adds the products of the lane's accumulators and the same elements of a matrix, row by row.
template <int kTiles, typename T, int kCols>
HL_DEVICE void AddDots(float (&sums)[2], float (&d)[kTiles][4], Matrix<T, kCols> m, int row,
                       int column) {
  ForRowPairs(d, row, column, [&](int i, int r, int c, float x, float y) {
    if (i == 0) KeepLoadsApart();
    const float2 other = LoadPair(&m.At(r, c));
    sums[i] += x * other.x + y * other.y;
  });
}
// Adds the sums of the warp's 16 rows to `to`.
HL_DEVICE void AddRowSums(const float (&sums)[2], float* to, int row) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = tiles::RowSum(sums[half]);
    if (LaneId() % 4 == 0) to[row + LaneId() / 4 + 8 * half] += sum;
  }
}

// ---- tensors ----

// Rows of `columns` elements in a matrix of aligned rows, `stride` elements apart.
template <typename T>
HL_DEVICE tiles::Rows MatrixRows(const T* first, int stride, int columns) {
  tiles::Rows rows;
  rows.data = reinterpret_cast<char*>(const_cast<T*>(first));
  rows.stride_t = stride;
  rows.dim = columns;
  rows.aligned = true;
  rows.is_wide = std::is_same_v<T, float>;
  return rows;
}

// Stores two neighbours of a row of type T. Elements outside the tensor are skipped.
template <typename T>
HL_DEVICE void StorePairToRows(const tiles::Rows& rows, int length, int r, int c, float x,
                               float y) {
  if (r >= length || c >= rows.dim) return;
  T* const target = reinterpret_cast<T*>(rows.data) + r * rows.stride_t + c;
  if (rows.aligned) return StorePair(target, x, y);
  target[0] = ToType<T>(x);
  if (c + 1 < rows.dim) target[1] = ToType<T>(y);
}
// Stores accumulators. The addresses of all elements at once would need more registers than there
// are, so each tile computes its own from a fresh lane number.
template <typename T, int kTiles>
HL_DEVICE void StoreToRows(float (&d)[kTiles][4], const tiles::Rows& rows, int length, int row,
                           int column) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int lane = tiles::FreshLaneId();
#pragma unroll
    for (int i = 0; i < 2; ++i)
      StorePairToRows<T>(rows, length, row + lane / 4 + 8 * i, column + 8 * n + lane % 4 * 2,
                         d[n][2 * i], d[n][2 * i + 1]);
  }
}

}  // namespace halflife::kernels::delta
