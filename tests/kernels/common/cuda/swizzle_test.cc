// The index maps of shared memory are permutations, free of bank conflicts, and consistent.
#include "tools/cuda_emulator/swizzle.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace halflife::kernels {
namespace {

template <int kCols>
void CheckSwizzle() {
  constexpr int kRows = 64;
  std::set<int> seen;
  for (int row = 0; row < kRows; ++row) {
    for (int col = 0; col < kCols; ++col) {
      const int at = SwizzledOffset<kCols>(row, col);
      EXPECT_EQ(at / kCols, row) << "an element leaves its row";
      EXPECT_EQ(at % kUnitElements, col % kUnitElements) << "a unit is torn";
      EXPECT_TRUE(seen.insert(at).second) << row << ", " << col;
    }
  }
  EXPECT_EQ(*seen.rbegin(), kRows * kCols - 1);
  // One ldmatrix reads 16 bytes at one column of eight consecutive rows. They must be in all 8
  // groups of 4 banks.
  for (int row = 0; row < kRows; row += 8) {
    for (int col = 0; col < kCols; col += kUnitElements) {
      std::set<int> groups;
      for (int i = 0; i < 8; ++i) {
        groups.insert(SwizzledOffset<kCols>(row + i, col) / kUnitElements % 8);
      }
      EXPECT_EQ(groups.size(), 8u) << row << ", " << col;
    }
  }
}

TEST(Swizzle, IsAPermutationWithoutBankConflicts) {
  CheckSwizzle<64>();
  CheckSwizzle<128>();
  CheckSwizzle<256>();
}

TEST(Swizzle, Of64ColumnsIsTmas) {
  for (int row = 0; row < 64; ++row) {
    for (int col = 0; col < 64; ++col) {
      EXPECT_EQ(static_cast<unsigned>(2 * SwizzledOffset<64>(row, col)),
                Swizzle128Bytes(static_cast<unsigned>(128 * row + 2 * col)));
    }
  }
}

using Elements = std::set<std::pair<int, int>>;

template <typename Map>
Elements Gather(int threads, int registers, int halves, const Map& map) {
  Elements elements;
  for (int thread = 0; thread < threads; ++thread) {
    for (int i = 0; i < registers; ++i) {
      for (int half = 0; half < halves; ++half) {
        const FragmentCoord at = map(thread, i, half);
        EXPECT_TRUE(elements.emplace(at.row, at.col).second) << at.row << ", " << at.col;
      }
    }
  }
  return elements;
}

void ExpectWhole(const Elements& elements, int rows, int cols) {
  EXPECT_EQ(elements.size(), static_cast<size_t>(rows * cols));
  EXPECT_EQ(*elements.begin(), std::pair(0, 0));
  for (const auto& [row, col] : elements) {
    EXPECT_LT(row, rows);
    EXPECT_LT(col, cols);
  }
}

TEST(Fragments, HoldEveryElementOnce) {
  const auto whole = [](auto map) { return [map](int l, int i, int) { return map(l, i); }; };
  ExpectWhole(Gather(32, 4, 2, MmaA), 16, 16);
  ExpectWhole(Gather(32, 2, 2, MmaB), 16, 8);
  ExpectWhole(Gather(32, 4, 1, whole(MmaD)), 16, 8);
  ExpectWhole(Gather(32, 4, 1, whole(MmaTf32A)), 16, 8);
  ExpectWhole(Gather(32, 2, 1, whole(MmaTf32B)), 8, 8);
  ExpectWhole(Gather(128, 32, 1, whole(WgmmaD)), 64, 64);
  ExpectWhole(Gather(128, 4, 2, WgmmaA), 64, 16);
}

// ldmatrix gives lane l of matrix i the elements of row l / 4, columns 2 (l % 4) and + 1, or the
// transposed ones.
FragmentCoord Received(FragmentCoord (*row_of_lane)(int), int lane, int i, int half, bool trans) {
  const int along = 2 * (lane % 4) + half, across = lane / 4;
  const FragmentCoord row = row_of_lane(8 * i + (trans ? along : across));
  return {row.row, row.col + (trans ? across : along)};
}

TEST(Fragments, LdMatrixAddressesGiveMmasFragments) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      for (int half = 0; half < 2; ++half) {
        const FragmentCoord a = MmaA(lane, i, half), b = MmaB(lane, i % 2, half);
        const int n = b.col + 8 * (i / 2);
        const FragmentCoord got_a = Received(LdMatrixA, lane, i, half, false);
        EXPECT_EQ(std::pair(got_a.row, got_a.col), std::pair(a.row, a.col));
        const FragmentCoord got_at = Received(LdMatrixATransposed, lane, i, half, true);
        EXPECT_EQ(std::pair(got_at.col, got_at.row), std::pair(a.row, a.col));
        const FragmentCoord got_b = Received(LdMatrixBPair, lane, i, half, false);
        EXPECT_EQ(std::pair(got_b.col, got_b.row), std::pair(b.row, n));
        const FragmentCoord got_bt = Received(LdMatrixBPairTransposed, lane, i, half, true);
        EXPECT_EQ(std::pair(got_bt.row, got_bt.col), std::pair(b.row, n));
      }
    }
  }
}

}  // namespace
}  // namespace halflife::kernels
