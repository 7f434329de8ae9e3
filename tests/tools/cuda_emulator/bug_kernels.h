// Kernels with one planted bug each, for tests of the emulator's reports. With `fixed`, a kernel is
// correct.
#pragma once

#include <cstdint>
#include <vector>

namespace halflife::kernels::test {

// Sums 128 numbers. Bug: no __syncthreads between the sums of the warps and the total.
float BlockSum(const std::vector<float>& x, bool fixed);

// Lane l writes to shared memory and lane l + 1 reads it. Bug: a shuffle instead of __syncwarp.
void ShiftInWarp(std::vector<int>& x, bool fixed);  // [32], rotated by one

// Doubles 128 x 4 words that cp.async loads. Bug: no wait, or a wait that leaves one group too many
// in flight.
enum class CopyMistake { kNone, kNoWait, kWaitOneGroupLess, kNoWaitAtAllAndExit };
std::vector<uint32_t> CopyTwoGroups(const std::vector<uint32_t>& x, CopyMistake mistake);

enum class Mistake {
  kNone,
  kOneWarpSkipsBarrier,    // it waits in the next barrier
  kNamedBarrierForgotten,  // one warp ends without arriving
  kNamedBarrierCount,      // two thread counts for one barrier
  kNamedBarrierOdd,        // 33 threads
  kShuffleDiverged,        // the lanes call it from two lines
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
  kSharedPastArray,  // a store after the end of the first array of SmemCarver
  kStaticPastArray,
  kGlobalPastArray,
  kException,
  kTrap,
};
void RunMistake(Mistake mistake, std::vector<float>& global);

// Bugs in the use of Hopper's instructions.
enum class HopperMistake {
  kNone,
  kNoMbarrierInit,
  kOverArrival,
  kWaitForgotten,   // the tile of a TMA load is read without a wait
  kBytesForgotten,  // the barrier expects fewer bytes than arrive, so its count skips zero
  kTooManyBytes,    // the barrier expects more bytes than arrive
  kMisalignedTile,
  kMisalignedColumn,
  kMisalignedBytes,
  kNoInitFence,
  kNoBarrierAfterInit,
  kNoProxyFence,
  kFenceOfAnotherThread,   // a thread that has not written calls the fence for the writers
  kNoFenceBeforeBulkCopy,  // a bulk copy overwrites ordinary stores
  kCopyOverReads,          // a bulk copy overwrites what another thread has loaded
  kStoreOverReads,         // an ordinary store overwrites an operand before the wait
  kAccumulatorsChanged,    // after WgmmaFence
  kOperandsChanged,        // in registers, after WgmmaFence
  kAccumulatorsChangedInFlight,
  kOperandsChangedInFlight,
  kNoWgmmaFence,
  kNoCommit,
  kReadBeforeWait,  // the accumulators are read before the wait
  kBadDescriptor,
  kTwoDescriptors,  // the warps of a warpgroup multiply different tiles
};
// out [64, 64] = tile [64, 64] tile^T.
std::vector<float> TileSquare(const std::vector<uint16_t>& tile, HopperMistake mistake);

// Copies four floats as one vector.
void CopyFourFloats(const float* from, float* to);

// Two blocks write the same word.
void WriteFromTwoBlocks(std::vector<int>& out);

void LaunchShapeOf(int threads, int smem_bytes);

}  // namespace halflife::kernels::test
