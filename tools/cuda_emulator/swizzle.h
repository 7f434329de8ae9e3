// Index maps of CUDA's instructions, for the emulator and the tests of kernels: the place of a
// 16-byte unit of a tile in shared memory, and the matrix element that a register of a lane holds.
//
//   tile[SwizzledOffset<64>(row, col)]  // bf16 tile [rows, 64]
//   const FragmentCoord from = LdMatrixA(lane);
//   LdMatrixX4<false>(a, q + SwizzledOffset<64>(m0 + from.row, k0 + from.col));
//   const FragmentCoord at = MmaD(lane, i);  // d[i] is out[m0 + at.row][n0 + at.col]
//
// lane = 4 g + t everywhere.
#pragma once

#if defined(__CUDACC__)
#define HL_HOST_DEVICE __host__ __device__
#else
#define HL_HOST_DEVICE
#endif

namespace halflife::kernels {

struct FragmentCoord {
  int row, col;
};

inline constexpr int kUnitElements = 8;  // bf16 in the 16 bytes that cp.async and ldmatrix move

// Offset of element (row, col) of a bf16 tile [rows, kCols]. The lowest three bits of the unit's
// index in its row are XORed with those of the row, so that eight rows at one column are in eight
// different bank groups. For 64 columns (128 bytes per row) and a tile aligned to 1024 bytes, it is
// the 128-byte swizzle of TMA and wgmma.
template <int kCols>
HL_HOST_DEVICE constexpr int SwizzledOffset(int row, int col) {
  static_assert(kCols == 64 || kCols == 128 || kCols == 256, "rows of 64, 128 or 256 bf16");
  return row * kCols + (((col / kUnitElements) ^ (row & 7)) * kUnitElements) + col % kUnitElements;
}

// Applies TMA's 128-byte swizzle to a byte offset relative to a multiple of 1024 bytes.
HL_HOST_DEVICE constexpr unsigned Swizzle128Bytes(unsigned offset) {
  return offset ^ (((offset >> 7) & 7u) << 4);
}

// ---- mma.m16n8k16: register i; `half` is 0 for its lower 16 bits, 1 for the upper ----

// a[i] of A [16, 16]: row m, col k.
HL_HOST_DEVICE constexpr FragmentCoord MmaA(int lane, int i, int half) {
  return {lane / 4 + 8 * (i % 2), 2 * (lane % 4) + 8 * (i / 2) + half};
}
// b[i] of B [16, 8]: row k, col n.
HL_HOST_DEVICE constexpr FragmentCoord MmaB(int lane, int i, int half) {
  return {2 * (lane % 4) + 8 * i + half, lane / 4};
}
// d[i] of D [16, 8]: row m, col n.
HL_HOST_DEVICE constexpr FragmentCoord MmaD(int lane, int i) {
  return {lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2};
}

// ---- mma.m16n8k8, TF32: one element per register; d as above ----

HL_HOST_DEVICE constexpr FragmentCoord MmaTf32A(int lane, int i) {
  return {lane / 4 + 8 * (i % 2), lane % 4 + 4 * (i / 2)};
}
HL_HOST_DEVICE constexpr FragmentCoord MmaTf32B(int lane, int i) {
  return {lane % 4 + 4 * i, lane / 4};
}

// ---- ldmatrix.x4: the (row, col) of the first element of the row whose address a lane passes ----

// A [16, 16] stored [m, k], not transposed: r[i] is MmaA's a[i].
HL_HOST_DEVICE constexpr FragmentCoord LdMatrixA(int lane) { return {lane % 16, 8 * (lane / 16)}; }
// A [16, 16] stored [k, m], transposed on load; coordinates (k, m).
HL_HOST_DEVICE constexpr FragmentCoord LdMatrixATransposed(int lane) {
  return {lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)};
}
// Two adjacent B [16, 8] (n 0..7, n 8..15) stored [n, k], not transposed; coordinates (n, k). r[0]
// r[1] are MmaB's b[0] b[1] of the first, r[2] r[3] those of the second.
HL_HOST_DEVICE constexpr FragmentCoord LdMatrixBPair(int lane) {
  return {lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)};
}
// The same stored [k, n], transposed on load; coordinates (k, n).
HL_HOST_DEVICE constexpr FragmentCoord LdMatrixBPairTransposed(int lane) {
  return {lane % 16, 8 * (lane / 16)};
}

// ---- wgmma.m64nNk16: thread of the warpgroup, 0..127 ----

// d[i] of D [64, N], i < N / 2.
HL_HOST_DEVICE constexpr FragmentCoord WgmmaD(int thread, int i) {
  return {16 * (thread / 32) + thread % 32 / 4 + 8 * (i / 2 % 2),
          8 * (i / 4) + 2 * (thread % 4) + i % 2};
}
// a[i] of A [64, 16] in registers.
HL_HOST_DEVICE constexpr FragmentCoord WgmmaA(int thread, int i, int half) {
  const FragmentCoord at = MmaA(thread % 32, i, half);
  return {16 * (thread / 32) + at.row, at.col};
}

}  // namespace halflife::kernels
