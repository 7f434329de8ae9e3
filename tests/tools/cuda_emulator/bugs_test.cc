// Kernels with planted bugs. Each bug must be found by the plain build (an error message, or NaN in
// place of a number), by AddressSanitizer or by ThreadSanitizer. A sanitizer's report ends the
// process, so these cases run in a child process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>

#include "core/error.h"
#include "tools/cuda_emulator/bug_kernels.h"

namespace halflife::kernels::test {
namespace {

using testing::ContainsRegex;

#if HL_EMULATED_ASAN
constexpr bool kAsan = true, kTsan = false;
#elif HL_EMULATED_TSAN
constexpr bool kAsan = false, kTsan = true;
#else
constexpr bool kAsan = false, kTsan = false;
#endif

std::string Order() {
  const char* order = getenv("HL_EMU_ORDER");
  return order == nullptr ? "forward" : order;
}

template <typename Body>
std::string ErrorOf(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Expects that the body ends with a report of the sanitizer that this program was built with.
#define HL_EXPECT_ASAN(body, text) EXPECT_DEATH({ body; }, text)
#define HL_EXPECT_TSAN(body, text) \
  EXPECT_EXIT(                     \
      {                            \
        body;                      \
        exit(0);                   \
      },                           \
      testing::ExitedWithCode(66), text)

class Bugs : public testing::Test {
 protected:
  // ThreadSanitizer counts fibers as threads, and it does not check a child that a process with
  // threads has forked. The child is therefore a new process.
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, kTsan ? "threadsafe" : "fast");
    setenv("HL_EMU_TRACK", "1", 1);
  }
};

std::vector<float> Numbers(int count) {
  std::vector<float> x(static_cast<size_t>(count));
  std::iota(x.begin(), x.end(), 1.0f);
  return x;
}

TEST_F(Bugs, MissingSyncthreads) {
  const std::vector<float> x = Numbers(128);
  EXPECT_EQ(BlockSum(x, /*fixed=*/true), 128 * 129 / 2);
  if (kTsan) {
    HL_EXPECT_TSAN(BlockSum(x, false), "data race[^$]*bug_kernels.cu:17");
  } else if (kAsan) {
    // In reverse order the reader runs last and is correct.
    if (Order() != "reverse") {
      EXPECT_TRUE(std::isnan(BlockSum(x, false)));
    }
  } else {  // in any order
    EXPECT_THAT(ErrorOf([&] { BlockSum(x, false); }),
                ContainsRegex("block sum, .* of static shared memory, which thread [0-9]+ has "
                              "(stored|loaded), and no barrier orders the two"));
  }
}

TEST_F(Bugs, TheTrackerCanBeTurnedOff) {
  if (kTsan) GTEST_SKIP() << "ThreadSanitizer reports the race";
  setenv("HL_EMU_TRACK", "0", 1);
  EXPECT_EQ(ErrorOf([] { BlockSum(Numbers(128), /*fixed=*/false); }), "no error");
}

TEST_F(Bugs, ShuffleInPlaceOfSyncwarp) {
  std::vector<int> x(32);
  std::iota(x.begin(), x.end(), 0);
  ShiftInWarp(x, /*fixed=*/true);
  EXPECT_EQ(x[0], 1);
  EXPECT_EQ(x[31], 0);
  if (kTsan) {
    HL_EXPECT_TSAN(ShiftInWarp(x, false), "data race[^$]*bug_kernels.cu:");
  } else if (!kAsan) {
    EXPECT_THAT(ErrorOf([&] { ShiftInWarp(x, false); }),
                ContainsRegex("shift, .* and no barrier orders the two"));
  }
}

TEST_F(Bugs, MissingWaitForCopies) {
  std::vector<uint32_t> x(512);
  std::iota(x.begin(), x.end(), 1);
  std::vector<uint32_t> doubled(512);
  for (size_t i = 0; i < 512; ++i) doubled[i] = 2 * x[i];
  EXPECT_EQ(CopyTwoGroups(x, CopyMistake::kNone), doubled);
  for (const CopyMistake mistake : {CopyMistake::kNoWait, CopyMistake::kWaitOneGroupLess}) {
    if (kAsan) {
      HL_EXPECT_ASAN(CopyTwoGroups(x, mistake), "use-after-poison[^$]*CopyTwoGroupsKernel");
    } else {
      EXPECT_NE(CopyTwoGroups(x, mistake), doubled);
    }
  }
  EXPECT_THAT(ErrorOf([&] { CopyTwoGroups(x, CopyMistake::kNoWaitAtAllAndExit); }),
              ContainsRegex("bug_kernels.cu:[0-9]+: copy, .*ends with [12] cp.async in flight"));
}

// The race is found even if one worker runs the blocks one after the other.
TEST_F(Bugs, RaceBetweenBlocks) {
  std::vector<int> out(1);
  if (!kTsan) GTEST_SKIP() << "found by ThreadSanitizer";
  HL_EXPECT_TSAN(setenv("HL_EMU_WORKERS", "1", 1);
                 WriteFromTwoBlocks(out), "data race[^$]*block \\(1,0,0\\)");
}

struct Expectation {
  Mistake mistake;
  const char* message;
};

TEST_F(Bugs, AreNamedWithTheirPlace) {
  std::vector<float> global(64);
  const Expectation expectations[] = {
      {Mistake::kNone, "no error"},
      {Mistake::kOneWarpSkipsBarrier,
       "__syncthreads here while .* in the one at bug_kernels.cu:[0-9]+"},
      {Mistake::kNamedBarrierForgotten,
       "deadlock in block 0,0,0 of mistake .*: 32 threads \\(first 0\\) exited; 96 threads "
       "\\(first "
       "32\\) wait in named barrier 3 at bug_kernels.cu:[0-9]+"},
      {Mistake::kNamedBarrierCount, "named barrier 3 for (64|128) threads, but the one at"},
      {Mistake::kNamedBarrierOdd, "named barrier 3 for 33 threads\\. Use a multiple of 32"},
      {Mistake::kShuffleDiverged, "__shfl_sync here while lanes [0-9a-f]+ .* bug_kernels.cu:"},
      {Mistake::kShuffleWithoutOwnLane, "mask 0000ffff, which leaves out the calling lane"},
      {Mistake::kShuffleWidth, "a shuffle of width 24\\. Use 1, 2, 4, 8, 16 or 32"},
      {Mistake::kHalfWarpMma, "mma.m16n8k16|deadlock"},
      {Mistake::kLdMatrixMisaligned,
       "bug_kernels.cu:[0-9]+: mistake, .* lane 5\\): ldmatrix from byte 88 of shared memory"},
      {Mistake::kLdMatrixFromGlobal, "ldmatrix from .*, which is not in shared memory"},
      {Mistake::kCopyMisaligned, "cp.async of 16 bytes from .* multiple of 16"},
      {Mistake::kWordMisaligned, "cp.async of 4 bytes from .* multiple of 4"},
      {Mistake::kCarveTooMuch,
       "cut 1 of SmemCarver ends at byte 4100, but the launch asked for 4096"},
      {Mistake::kCarveTwoLayouts, "a kernel has one layout"},
      {Mistake::kStaticTooMuch, "bytes of static shared memory in addition to 4096 dynamic bytes"},
      {Mistake::kException, "an exception left the kernel: no kernel throws"},
      {Mistake::kTrap, "bug_kernels.cu:[0-9]+: mistake, .*__trap"},
  };
  for (const Expectation& expectation : expectations) {
    EXPECT_THAT(ErrorOf([&] { RunMistake(expectation.mistake, global); }),
                ContainsRegex(expectation.message));
  }
}

TEST_F(Bugs, OutOfBounds) {
  std::vector<float> global(64);
  if (!kAsan) GTEST_SKIP() << "found by AddressSanitizer";
  HL_EXPECT_ASAN(RunMistake(Mistake::kSharedPastArray, global),
                 "use-after-poison[^$]*WRITE[^$]*MistakeKernel[^$]*bug_kernels.cu");
  HL_EXPECT_ASAN(RunMistake(Mistake::kStaticPastArray, global), "use-after-poison|out of bounds");
  HL_EXPECT_ASAN(RunMistake(Mistake::kGlobalPastArray, global),
                 "heap-buffer-overflow[^$]*WRITE[^$]*MistakeKernel[^$]*bug_kernels.cu");
}

TEST_F(Bugs, LaunchShape) {
  EXPECT_EQ(ErrorOf([] { LaunchShapeOf(1024, 227 * 1024); }), "no error");
  EXPECT_THAT(ErrorOf([] { LaunchShapeOf(1025, 0); }), ContainsRegex("a block of 1025 threads"));
  EXPECT_THAT(ErrorOf([] { LaunchShapeOf(32, 227 * 1024 + 1); }),
              ContainsRegex("232449 bytes of dynamic shared memory[.] Use at most 232448"));
}

TEST_F(Bugs, AfterAnErrorTheNextLaunchWorks) {
  std::vector<float> global(64);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(ErrorOf([&] { RunMistake(Mistake::kNamedBarrierForgotten, global); }), "no error");
    EXPECT_EQ(BlockSum(Numbers(128), true), 128 * 129 / 2);
  }
}

uint16_t Bf16(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

struct HopperExpectation {
  HopperMistake mistake;
  const char* message;
};

TEST_F(Bugs, HoppersAreNamedWithTheirPlace) {
  std::vector<uint16_t> tile(64 * 64);
  for (size_t i = 0; i < tile.size(); ++i) tile[i] = Bf16(static_cast<float>(i * 7 % 5));
  const HopperExpectation expectations[] = {
      {HopperMistake::kNone, "no error"},
      {HopperMistake::kNoMbarrierInit, "where no MbarrierInit was seen"},
      {HopperMistake::kOverArrival, "beyond the 1 of a phase"},
      {HopperMistake::kBytesForgotten, "deadlock .* wait in MbarrierWait on byte"},
      {HopperMistake::kTooManyBytes, "deadlock .* 128 threads .* wait in MbarrierWait on byte"},
      {HopperMistake::kMisalignedTile, "to byte 512 of shared memory\\. Use a multiple of 1024"},
      {HopperMistake::kMisalignedColumn,
       "from column -4, of 2 bytes each\\. Start at a multiple of 16"},
      {HopperMistake::kMisalignedBytes, "a bulk load of 24 bytes from .* multiples of 16 bytes"},
      {HopperMistake::kNoWgmmaFence, "without WgmmaFence"},
      {HopperMistake::kNoCommit, "128 wgmmas? in flight|4 wgmmas in flight"},
      {HopperMistake::kBadDescriptor, "AdvanceTile with 0, 32, 64 or 96"},
      {HopperMistake::kTwoDescriptors, "descriptors that differ between the threads"},
  };
  for (const HopperExpectation& expectation : expectations) {
    EXPECT_THAT(ErrorOf([&] { TileSquare(tile, expectation.mistake); }),
                ContainsRegex(expectation.message));
  }
  // A read before the wait gives wrong values and no message.
  EXPECT_TRUE(std::isnan(TileSquare(tile, HopperMistake::kReadBeforeWait)[0]));
  if (kAsan) {
    // In random order, the load can complete early.
    if (Order() != "random") {
      HL_EXPECT_ASAN(TileSquare(tile, HopperMistake::kWaitForgotten), "use-after-poison");
    }
    return;
  }
  if (kTsan) {
    if (Order() != "random") {
      HL_EXPECT_TSAN(TileSquare(tile, HopperMistake::kWaitForgotten), "data race[^$]*bulk copies");
    }
    return;
  }
  // Mistakes that only the tracker finds.
  const char* const unfenced =
      "has stored since its last proxy fence\\. Call FenceProxyAsync\\(\\) in the writing threads";
  const HopperExpectation tracked[] = {
      {HopperMistake::kWaitForgotten,
       "bug_kernels.cu:[0-9]+: a read by wgmma or TMA of byte [0-9]+ of dynamic shared memory, "
       "which a bulk copy "
       "has "
       "stored, and the thread has not waited"},
      {HopperMistake::kNoInitFence, unfenced},
      {HopperMistake::kNoBarrierAfterInit,
       "static shared memory, .* no barrier|no MbarrierInit was"},
      {HopperMistake::kNoProxyFence, unfenced},
      {HopperMistake::kFenceOfAnotherThread, unfenced},
      {HopperMistake::kNoFenceBeforeBulkCopy, "a bulk copy of byte [0-9]+ .* since its last proxy"},
      // The order decides which of the two accesses is reported.
      {HopperMistake::kCopyOverReads,
       "a bulk copy of byte [0-9]+ .* has loaded, and no barrier|a load of byte .* a bulk copy"},
      {HopperMistake::kStoreOverReads,
       "changed before its WgmmaWait|which thread [0-9]+ has stored, and no barrier"},
      {HopperMistake::kAccumulatorsChanged,
       "wgmma with accumulators that have changed since the last WgmmaFence"},
      {HopperMistake::kOperandsChanged,
       "wgmma with operands that have changed since the last WgmmaFence"},
      {HopperMistake::kAccumulatorsChangedInFlight, "accumulators of this wgmma have changed"},
      {HopperMistake::kOperandsChangedInFlight, "operands of this wgmma have changed before"},
  };
  for (const HopperExpectation& expectation : tracked) {
    EXPECT_THAT(ErrorOf([&] { TileSquare(tile, expectation.mistake); }),
                ContainsRegex(expectation.message));
  }
}

// A vector access to an address that a tensor's view can have.
TEST_F(Bugs, MisalignedVector) {
  if (kAsan || kTsan) GTEST_SKIP() << "UBSan reports it and ends the process";
  alignas(16) float x[8] = {};
  CopyFourFloats(x + 4, x);
  EXPECT_THAT(ErrorOf([&] { CopyFourFloats(x + 2, x); }),
              ContainsRegex("vector, .*bug_kernels.cu:[0-9]+: an access to .*\\. Align it to 16"));
}

}  // namespace
}  // namespace halflife::kernels::test
