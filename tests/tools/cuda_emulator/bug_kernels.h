// Kernels with one mistake each, for the tests of what finds it. Correct where `fixed`.
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::kernels::test {

// Sums 128 numbers; the mistake: no __syncthreads between the warps' sums and their sum.
float BlockSum(const std::vector<float>& x, bool fixed);

// Lane l writes shared memory, lane l + 1 reads it; the mistake: a shuffle in place of __syncwarp.
void ShiftInWarp(std::vector<int>& x, bool fixed);  // [32], rotated by one

// Doubles 128 x 4 words by way of cp.async; the mistake: no wait, or a wait that leaves one group
// too many.
enum class CopyMistake { kNone, kNoWait, kWaitOneGroupLess, kNoWaitAtAllAndExit };
std::vector<uint32_t> CopyTwoGroups(const std::vector<uint32_t>& x, CopyMistake mistake);

enum class Mistake {
  kNone,
  kOneWarpSkipsBarrier,    // and waits in the next
  kNamedBarrierForgotten,  // by one warp, which ends
  kNamedBarrierCount,      // two counts for one barrier
  kNamedBarrierOdd,        // 33 threads
  kShuffleDiverged,        // lanes at two lines
  kShuffleWithoutOwnLane,
  kShuffleWidth,
  kHalfWarpMma,
  kLdMatrixMisaligned,
  kLdMatrixFromGlobal,
  kCopyMisaligned,
  kWordMisaligned,
  kCarveTooMuch,
  kCarveTwoLayouts,
  kStaticTooMuch,
  kSharedPastArray,  // a store behind the first array of SmemCarver
  kStaticPastArray,
  kGlobalPastArray,
  kException,
  kTrap,
};
void RunMistake(Mistake mistake, std::vector<float>& global);

// Hopper's.
enum class HopperMistake {
  kNone,
  kNoMbarrierInit,
  kOverArrival,
  kWaitForgotten,   // TMA's tile is read at once
  kBytesForgotten,  // the barrier expects fewer bytes than come: its count passes by zero
  kTooManyBytes,    // or more
  kMisalignedTile,
  kMisalignedColumn,
  kNoProxyFence,
  kNoWgmmaFence,
  kNoCommit,
  kReadBeforeWait,  // the accumulators
  kBadDescriptor,
};
// out [64, 64] = tile [64, 64] tile^T.
std::vector<float> TileSquare(const std::vector<uint16_t>& tile, HopperMistake mistake);

// Two blocks that write the same word.
void WriteFromTwoBlocks(std::vector<int>& out);

void LaunchShapeOf(int threads, int smem_bytes);

}  // namespace halflife::kernels::test
