// Tests every wrapper against the tables of the PTX ISA, which this file states independently. The
// emulator and the index maps in swizzle.h follow our reading of the ISA. Only the same tests on a
// GPU prove that reading.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "tools/cuda_emulator/wrapper_kernels.h"

namespace halflife::kernels::test {
namespace {

class Wrappers : public testing::Test {
 protected:
  void SetUp() override {
    if (!CanRun(8)) GTEST_SKIP() << "needs a GPU of compute capability 8.0 or later";
  }
};

class Wrappers90 : public testing::Test {
 protected:
  void SetUp() override {
    if (!CanRun(9)) GTEST_SKIP() << "needs a GPU of compute capability 9.0";
  }
};

uint16_t Bf16(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }
float FromBf16(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// PTX ISA, "Matrix fragments for mma.m16n8k16", .bf16: elements a_i, i = 0..7, two per register.
int RowOfA(int lane, int i) {
  const int group = lane >> 2;
  return (0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8;
}
int ColOfA(int lane, int i) {
  const int thread = lane % 4;
  return i < 4 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8;
}
int RowOfB(int lane, int i) {
  const int thread = lane % 4;
  return i < 2 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8;
}
int ColOfB(int lane) { return lane >> 2; }
int RowOfC(int lane, int i) { return i < 2 ? lane >> 2 : (lane >> 2) + 8; }
int ColOfC(int lane, int i) { return lane % 4 * 2 + (i & 1); }

// For every element (m, k) of A: A is 1 at (m, k) and 0 elsewhere, and B[k][n] = 1 + 8 k + n, so
// row m of D is row k of B.
TEST_F(Wrappers, MmaBf16FollowsTheTable) {
  std::vector<MmaCase> cases(16 * 16);
  for (int index = 0; index < 256; ++index) {
    MmaCase& io = cases[static_cast<size_t>(index)];
    io = {};
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 8; ++i) {
        const bool one = RowOfA(lane, i) == index / 16 && ColOfA(lane, i) == index % 16;
        io.a[lane][i / 2] |= uint32_t{Bf16(one ? 1.0f : 0.0f)} << (16 * (i % 2));
      }
      for (int i = 0; i < 4; ++i) {
        const int value = 1 + 8 * RowOfB(lane, i) + ColOfB(lane);
        io.b[lane][i / 2] |= uint32_t{Bf16(static_cast<float>(value))} << (16 * (i % 2));
        io.d[lane][i] = 1000;
      }
    }
  }
  RunMmaBf16(cases);
  for (int index = 0; index < 256; ++index) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int k = index % 16;
        const bool row = RowOfC(lane, i) == index / 16;
        EXPECT_EQ(cases[static_cast<size_t>(index)].d[lane][i],
                  1000.0f + (row ? static_cast<float>(1 + 8 * k + ColOfC(lane, i)) : 0.0f))
            << "A is 1 at " << index / 16 << ", " << k << "; lane " << lane << " d" << i;
      }
    }
  }
}

// PTX ISA, "Matrix fragments for mma.m16n8k8", .tf32.
TEST_F(Wrappers, MmaTf32FollowsTheTable) {
  std::vector<MmaCase> cases(16 * 8);
  for (int index = 0; index < 128; ++index) {
    MmaCase& io = cases[static_cast<size_t>(index)];
    io = {};
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = i == 0 || i == 2 ? lane >> 2 : (lane >> 2) + 8;
        const int col = i < 2 ? lane % 4 : lane % 4 + 4;
        io.a[lane][i] = std::bit_cast<uint32_t>(row == index / 8 && col == index % 8 ? 1.0f : 0.0f);
      }
      for (int i = 0; i < 2; ++i) {
        const int row = i == 0 ? lane % 4 : lane % 4 + 4;
        io.b[lane][i] = std::bit_cast<uint32_t>(static_cast<float>(1 + 8 * row + (lane >> 2)));
      }
    }
  }
  RunMmaTf32(cases);
  for (int index = 0; index < 128; ++index) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const bool row = RowOfC(lane, i) == index / 8;
        EXPECT_EQ(cases[static_cast<size_t>(index)].d[lane][i],
                  row ? static_cast<float>(1 + 8 * (index % 8) + ColOfC(lane, i)) : 0.0f)
            << "A is 1 at " << index / 8 << ", " << index % 8 << "; lane " << lane << " d" << i;
      }
    }
  }
}

// PTX ISA, ldmatrix .x4: lanes 8 i to 8 i + 7 address the rows of matrix i. Lane l receives
// elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix, or of each transposed matrix
// with .trans.
TEST_F(Wrappers, LdMatrixFollowsTheTable) {
  std::vector<LdMatrixCase> cases(4);
  for (size_t c = 0; c < cases.size(); ++c) {
    cases[c].trans = c % 2 == 1;
    for (int row = 0; row < 32; ++row) {
      cases[c].row_of_lane[row] = c < 2 ? row : (row * 13 + 5) % 32;
      for (int i = 0; i < 8; ++i) cases[c].rows[row][i] = static_cast<uint16_t>(100 * row + i);
    }
  }
  RunLdMatrix(cases);
  for (const LdMatrixCase& io : cases) {
    const auto element = [&io](int matrix, int row, int col) -> uint32_t {
      return io.rows[io.row_of_lane[8 * matrix + row]][col];
    };
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int at = lane / 4, first = lane % 4 * 2;
        const uint32_t lo = io.trans ? element(i, first, at) : element(i, at, first);
        const uint32_t hi = io.trans ? element(i, first + 1, at) : element(i, at, first + 1);
        EXPECT_EQ(io.r[lane][i], lo | (hi << 16)) << "lane " << lane << " r" << i;
      }
    }
  }
}

// PTX ISA, shfl.sync: operand c holds the clamp and a segment mask, which follow from the width.
TEST_F(Wrappers, ShufflesFollowTheIsa) {
  std::vector<ShuffleCase> cases;
  for (const ShuffleKind kind :
       {ShuffleKind::kIndex, ShuffleKind::kUp, ShuffleKind::kDown, ShuffleKind::kXor}) {
    for (const int width : {1, 2, 4, 8, 16, 32}) {
      for (int operand = 0; operand < 32; ++operand) cases.push_back({kind, width, operand, {}});
    }
  }
  RunShuffles(cases);
  for (const ShuffleCase& io : cases) {
    const int segment = 32 - io.width;  // the bits of a lane number that select its segment
    const int clamp = io.kind == ShuffleKind::kUp ? 0 : 31;
    for (int lane = 0; lane < 32; ++lane) {
      const int max_lane = (lane & segment) | (clamp & ~segment);
      const int min_lane = lane & segment;
      int j = 0;
      bool inside = false;
      switch (io.kind) {
        case ShuffleKind::kUp:
          j = lane - io.operand;
          inside = j >= max_lane;
          break;
        case ShuffleKind::kDown:
          j = lane + io.operand;
          inside = j <= max_lane;
          break;
        case ShuffleKind::kXor:
          j = lane ^ io.operand;
          inside = j <= max_lane;
          break;
        case ShuffleKind::kIndex:
          j = min_lane | (io.operand & ~segment);
          inside = j <= max_lane;
          break;
      }
      EXPECT_EQ(io.from_lane[lane], inside ? j : lane)
          << "kind " << static_cast<int>(io.kind) << " width " << io.width << " operand "
          << io.operand << " lane " << lane;
    }
  }
}

TEST_F(Wrappers, Votes) {
  std::vector<VoteCase> cases;
  for (const uint32_t predicates : {0u, 1u, 0x80000000u, 0x12345678u, 0xfffffffeu, ~0u}) {
    cases.push_back({predicates, {}, {}, {}});
  }
  RunVotes(cases);
  for (const VoteCase& io : cases) {
    for (int lane = 0; lane < 32; ++lane) {
      EXPECT_EQ(io.ballot[lane], io.predicates);
      EXPECT_EQ(io.any[lane], io.predicates != 0);
      EXPECT_EQ(io.all[lane], io.predicates == ~0u);
    }
  }
}

TEST_F(Wrappers, WarpSumAndMaxAreTheSameBitsInEveryLane) {
  WarpReductions io = {};
  for (int lane = 0; lane < 32; ++lane) io.x[lane] = static_cast<float>(lane * 37 % 32) - 20;
  RunWarpReductions(io);
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(io.sum[lane], 31 * 16 - 20 * 32);
    EXPECT_EQ(io.max[lane], 11);
  }
}

uint16_t RoundedToBf16(float x) {  // to nearest, ties to even
  if (std::isnan(x)) return 0x7fff;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t down = bits & 0xffff0000u, rest = bits & 0xffffu;
  const bool up = rest > 0x8000u || (rest == 0x8000u && ((down >> 16) & 1) != 0);
  return static_cast<uint16_t>((down >> 16) + (up ? 1 : 0));
}

TEST_F(Wrappers, Conversions) {
  std::vector<ConversionCase> cases;
  // All signs and exponents, with the mantissas near the ties of both formats.
  for (uint32_t top = 0; top < 512; ++top) {
    for (const uint32_t mantissa :
         {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x3001u, 0x7fffu, 0x8000u, 0x8001u,
          0x17fffu, 0x18000u, 0x18001u, 0x7fffffu}) {
      const uint32_t bits = (top << 23) | mantissa;
      cases.push_back({std::bit_cast<float>(bits), std::bit_cast<float>(bits ^ 0x80000000u)});
    }
  }
  for (int i = -1600; i <= 1600; ++i) cases.push_back({0.1f * static_cast<float>(i), 1});
  RunConversions(cases);
  for (const ConversionCase& io : cases) {
    const uint32_t bits = std::bit_cast<uint32_t>(io.lo);
    const uint32_t expected = RoundedToBf16(io.lo) | (uint32_t{RoundedToBf16(io.hi)} << 16);
    EXPECT_EQ(io.packed, expected) << io.lo;
    if (std::isnan(io.lo)) continue;
    EXPECT_EQ(std::bit_cast<uint32_t>(io.unpacked_lo), expected << 16) << io.lo;
    const double exponential = std::exp2(static_cast<double>(io.lo));
    if (exponential < 0x1p-126) {
      EXPECT_LE(io.exp2, 0x1.00001p-126f) << io.lo;
    } else if (exponential > std::numeric_limits<float>::max()) {
      EXPECT_EQ(io.exp2, std::numeric_limits<float>::infinity()) << io.lo;
    } else {  // the ISA guarantees 2 ulp
      EXPECT_NEAR(io.exp2 / exponential, 1, 3e-7) << io.lo;
    }
    if (std::isinf(io.lo)) continue;
    const float tf32 = std::bit_cast<float>(io.tf32);
    EXPECT_EQ(io.tf32 & 0x1fffu, 0u);
    EXPECT_EQ(io.tf32,
              (bits & 0x1fffu) >= 0x1000u ? (bits & 0xffffe000u) + 0x2000u : bits & 0xffffe000u)
        << io.lo << " became " << tf32;
  }
}

TEST_F(Wrappers, CopiesLandByTheirGroupAndFillWithZeros) {
  CopyCase io = {};
  for (uint32_t i = 0; i < 192; ++i) io.source[i] = 1000 + i;
  RunCopies(io);
  for (uint32_t i = 0; i < 192; ++i) {
    const bool valid = i / 4 % 16 % 3 != 2;
    EXPECT_EQ(io.out[i], valid ? 1000 + i : 0) << i;
  }
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(io.words[i], i % 3 != 2 ? 1001 + i : 0) << i;
}

TEST_F(Wrappers, NamedBarriersHandOverAndHalvesShuffle) {
  HandOver io = {};
  RunHandOver(io);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(io.received[i], 600 + 4 * (63 - i));
  for (int lane = 0; lane < 16; ++lane) EXPECT_EQ(io.half_sums[lane], 120);
}

// Draws small whole numbers, so that every product and sum is exact.
Product MakeProduct(int depth) {
  Product product{depth, {}, {}, std::vector<float>(64 * 64, -1)};
  for (int i = 0; i < 64 * depth; ++i) {
    product.a.push_back(Bf16(static_cast<float>((i * 7 + i / depth * 3) % 13 - 6)));
    product.b.push_back(Bf16(static_cast<float>((i * 5 + i / depth * 11) % 9 - 4)));
  }
  return product;
}

void ExpectProduct(const Product& product, float bias = 0) {
  for (int m = 0; m < 64; ++m) {
    for (int n = 0; n < 64; ++n) {
      float sum = bias;
      for (int k = 0; k < product.depth; ++k) {
        sum += FromBf16(product.a[static_cast<size_t>(m * product.depth + k)]) *
               FromBf16(product.b[static_cast<size_t>(n * product.depth + k)]);
      }
      ASSERT_EQ(product.out[static_cast<size_t>(m * 64 + n)], sum) << m << ", " << n;
    }
  }
}

TEST_F(Wrappers, ProductByCopiesLdMatrixAndMma) {
  for (const int depth : {64, 256}) {
    Product product = MakeProduct(depth);
    RunMmaProduct(product);
    ExpectProduct(product);
  }
}

TEST_F(Wrappers90, ProductByTmaAndWgmma) {
  for (const bool a_in_registers : {false, true}) {
    for (const int depth : {64, 320}) {
      Product product = MakeProduct(depth);
      RunWgmmaProduct(product, a_in_registers);
      ExpectProduct(product);
    }
  }
}

TEST_F(Wrappers90, WgmmaOnStoredTiles) {
  Product product = MakeProduct(64);
  RunStoredProduct(product);
  ExpectProduct(product, 1);
}

TEST_F(Wrappers90, WgmmaOnRowsOfATile) {
  Product product = MakeProduct(64);
  RunProductOfRows(product);
  ExpectProduct(product, 1);
}

// The swizzle of the CUDA programming guide: 16-byte unit u of 128-byte row r is stored at unit
// u ^ (r % 8). Elements outside the matrix are zero. Columns are multiples of 16 bytes, as a GPU
// requires.
TEST_F(Wrappers90, TmaSwizzlesAndPadsWithZeros) {
  for (const auto& [row, col] : {std::pair(0, 0), {5, 24}, {35, 40}, {-3, -8}, {38, 72}}) {
    SCOPED_TRACE(testing::Message() << "box at " << row << ", " << col);
    TmaCase io{40, 80, row, col, {}, std::vector<uint16_t>(16 * 64, 1)};
    for (int i = 0; i < 40 * 80; ++i) io.matrix.push_back(static_cast<uint16_t>(1 + i));
    RunTma(io);
    for (int r = 0; r < 16; ++r) {
      for (int c = 0; c < 64; ++c) {
        const int from_row = row + r, from_col = col + c;
        const bool inside = from_row >= 0 && from_row < 40 && from_col >= 0 && from_col < 80;
        const int at = r * 64 + (c / 8 ^ r % 8) * 8 + c % 8;
        EXPECT_EQ(io.tile[static_cast<size_t>(at)], inside ? 1 + from_row * 80 + from_col : 0)
            << "element " << r << ", " << c;
      }
    }
  }
}

TEST_F(Wrappers90, BulkLoadOfContiguousBytes) {
  std::vector<uint32_t> words;
  for (uint32_t i = 0; i < kBulkFirst + kBulkSecond; ++i) words.push_back(1 + i);
  const std::vector<uint32_t> got = RunBulkLoad(words);
  std::rotate(words.begin(), words.begin() + kBulkFirst, words.end());
  EXPECT_EQ(got, words);
}

}  // namespace
}  // namespace halflife::kernels::test
