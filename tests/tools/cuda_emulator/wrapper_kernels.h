// The kernels of the wrapper tests, for the emulator and for a GPU. Each function uploads its
// arguments, launches the kernel and downloads the results.
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::kernels::test {

// Returns true if the kernels can run: always in the emulator. On a GPU, 8 requires compute
// capability 8.0 or higher, and 9 requires 9.x. Tests skip if the kernels cannot run.
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
  int from_lane[32];  // out: the lane whose value each lane received
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

// Copies 48 units of 16 bytes in three groups, and waits for the second with one group pending.
// Every third unit is invalid (zero-filled). Then copies 16 words of 4 bytes in the same way from a
// source that is not aligned to 16 bytes.
struct CopyCase {
  uint32_t source[192];
  uint32_t out[192];
  uint32_t words[16];
};
void RunCopies(CopyCase& io);

// Warps 0 and 1 pass numbers to warps 2 and 3 through a buffer that two named barriers guard. Warp
// 0 also splits into halves that shuffle separately.
struct HandOver {
  int received[64];
  int half_sums[32];
};
void RunHandOver(HandOver& io);

// Computes out [64, 64] = a [64, depth] b [64, depth]^T with cp.async in two stages, swizzled
// tiles, ldmatrix and mma. depth must be a multiple of 64.
struct Product {
  int depth;
  std::vector<uint16_t> a, b;  // bf16 [64, depth]
  std::vector<float> out;      // [64, 64]
};
void RunMmaProduct(Product& product);

// ---- sm_90a ----

// Computes the same product with TMA in two stages, issued by one producer warp, and wgmma. Operand
// a comes from shared memory or from registers.
void RunWgmmaProduct(Product& product, bool a_in_registers);

// Loads the box of 64 x 16 at (row, col) of a matrix [rows, cols]. Returns its layout in shared
// memory.
struct TmaCase {
  int rows, cols, row, col;
  std::vector<uint16_t> matrix;  // [rows, cols], cols a multiple of 8
  std::vector<uint16_t> tile;    // out: [16 * 64]
};
void RunTma(TmaCase& io);

// Copies two runs of words to shared memory and back, in exchanged order.
inline constexpr int kBulkFirst = 68, kBulkSecond = 4;
std::vector<uint32_t> RunBulkLoad(const std::vector<uint32_t>& words);

// Computes the same product with tiles that ordinary stores write, a proxy fence and wgmma.
void RunStoredProduct(Product& product);
void RunProductOfRows(Product& product);  // the second operand is stored by rows

}  // namespace halflife::kernels::test
