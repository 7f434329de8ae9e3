// What the wrapper tests run, in the emulator or on a GPU: each function uploads, launches and
// downloads.
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::kernels::test {

// 0 in the emulator's sense of "always there"; on a machine without such a GPU: false, and the
// tests skip.
bool CanRun(int major);

struct MmaCase {
  uint32_t a[32][4], b[32][2];  // [lane][register]
  float d[32][4];               // in and out
};
void RunMmaBf16(std::vector<MmaCase>& cases);
void RunMmaTf32(std::vector<MmaCase>& cases);

struct LdMatrixCase {
  uint16_t rows[32][8];
  int row_of_lane[32];
  bool trans;
  uint32_t r[32][4];  // out
};
void RunLdMatrix(std::vector<LdMatrixCase>& cases);

enum class ShuffleKind { kIndex, kUp, kDown, kXor };
struct ShuffleCase {
  ShuffleKind kind;
  int width, operand;
  int from_lane[32];  // out: whose value each lane got
};
void RunShuffles(std::vector<ShuffleCase>& cases);

struct VoteCase {
  uint32_t predicates;
  uint32_t ballot[32], any[32], all[32];  // out, per lane
};
void RunVotes(std::vector<VoteCase>& cases);

struct ConversionCase {
  float lo, hi;
  uint32_t packed, tf32;    // out
  float unpacked_lo, exp2;  // out
};
void RunConversions(std::vector<ConversionCase>& cases);

struct WarpReductions {
  float x[32];
  float sum[32], max[32];  // out
};
void RunWarpReductions(WarpReductions& io);

// 48 units of 16 bytes in three groups, the second waited for with one group pending; every third
// unit is not valid. Then 16 words of 4 bytes, likewise, from a source that 16 bytes do not divide.
struct CopyCase {
  uint32_t source[192];
  uint32_t out[192];
  uint32_t words[16];
};
void RunCopies(CopyCase& io);

// Warps 0 and 1 hand numbers to warps 2 and 3 through a buffer guarded by two named barriers; warp
// 0 also splits into halves that shuffle on their own.
struct HandOver {
  int received[64];
  int half_sums[32];
};
void RunHandOver(HandOver& io);

// out [64, 64] = a [64, depth] b [64, depth]^T by cp.async in two stages, swizzled tiles, ldmatrix
// and mma; depth a multiple of 64.
struct Product {
  int depth;
  std::vector<uint16_t> a, b;  // bf16 [64, depth]
  std::vector<float> out;      // [64, 64]
};
void RunMmaProduct(Product& product);

// ---- sm_90a ----

// The same by TMA in two stages from one producer warp, and wgmma; a from shared memory or through
// registers.
void RunWgmmaProduct(Product& product, bool a_in_registers);

// The box of 64 x 16 at (row, col) of a matrix [rows, cols], as it lies in shared memory.
struct TmaCase {
  int rows, cols, row, col;
  std::vector<uint16_t> matrix;  // [rows, cols], cols a multiple of 8
  std::vector<uint16_t> tile;    // out: [16 * 64]
};
void RunTma(TmaCase& io);

// Tiles written by ordinary stores, a proxy fence, wgmma.
void RunStoredProduct(Product& product);
void RunProductOfRows(Product& product);  // the second operand read by rows

}  // namespace halflife::kernels::test
