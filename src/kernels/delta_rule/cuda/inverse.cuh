// Computes X = (I + L)^-1 in fp32 for a strictly lower triangular L [64, 64], by forward
// substitution in tiles of 16 rows. For row tile i,
//
//   (I + L_ii) X_ij = I_ij - sum over m in [j, i) of L_im X_mj,
//
// and the system of the tile is solved row by row, one thread per column. With equal keys, where
// repeated squaring of L fails, the error is still that of fp32. With beta near 2 the sums cancel,
// so they are not computed from split TF32 operands.
#pragma once

#include "kernels/delta_rule/cuda/decays.cuh"

namespace halflife::kernels::delta {

// Stores minus the sums for row tile i in their places in X. A thread has one column and four rows.
HL_DEVICE void SubtractEarlierTiles(Matrix<float, kChunk> inverse, Matrix<float, kChunk> lower,
                                    int i) {
  const int column = static_cast<int>(threadIdx.x) / 4;
  const int row = i * kTile + static_cast<int>(threadIdx.x) % 4 * 4;
  if (column >= i * kTile) return;
  float sums[4] = {0, 0, 0, 0};
#pragma unroll 1
  for (int m = column / kTile * kTile; m < i * kTile; m += 4) {
    float x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = inverse.At(m + j, column);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 l = *reinterpret_cast<const float4*>(&lower.At(row + j, m));
      sums[j] += l.x * x[0] + l.y * x[1] + l.z * x[2] + l.w * x[3];
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) inverse.At(row + j, column) = -sums[j];
}

// Solves a column of row tile i.
HL_DEVICE void SubstituteColumn(Matrix<float, kChunk> inverse, Matrix<float, kChunk> lower, int i,
                                int column) {
  const int first = i * kTile;
  float x[kTile];
#pragma unroll
  for (int r = 0; r < kTile; ++r) {
    float value = column < first ? inverse.At(first + r, column) : 0.0f;
    if (first + r == column) value = 1;
#pragma unroll
    for (int s = 0; s < r; ++s) value -= lower.At(first + r, first + s) * x[s];
    x[r] = value;
    inverse.At(first + r, column) = value;
  }
}

// Called by all threads of a block of at least 192. Only elements of `lower` below the diagonal are
// read. The first and the last step are barriers.
template <int kThreads>
HL_DEVICE void InvertUnitLower(Matrix<float, kChunk> inverse, Matrix<float, kChunk> lower) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kChunk * kChunk; i += kThreads)
    if (i / kChunk / kTile < i % kChunk / kTile) inverse.At(i / kChunk, i % kChunk) = 0;
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < kTiles; ++i) {
    SubtractEarlierTiles(inverse, lower, i);
    __syncthreads();
    if (thread < (i + 1) * kTile) SubstituteColumn(inverse, lower, i, thread);
    __syncthreads();
  }
}

}  // namespace halflife::kernels::delta
