// The emulated CUDA kernel of the gradient's sum of squares equals a plain sum.
#include "kernels/sum_of_squares/sum_of_squares_args.h"

#include <limits>

#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

// Parameters of one element, less and more than a block, and whole blocks. Before each are `gap`
// elements of another value.
constexpr int64_t kCounts[] = {1, 7, kSquaresBlock + 5, 2 * kSquaresBlock, 300};

struct Segments {
  explicit Segments(int64_t gap) {
    for (const int64_t count : kCounts) {
      list.push_back({size + gap, count, num_blocks});
      num_blocks += list.back().num_blocks();
      size += gap + count;
    }
  }
  std::vector<SquaresSegment> list;
  int64_t size = 0, num_blocks = 0;
};

struct Sums {
  Values partials, want;
};
Sums SumsWithGap(int64_t gap) {
  const Segments segments(gap);
  Array<float> values(segments.size);
  std::fill(values.data(), values.data() + segments.size, 1e6f);
  Sums sums = {Values(segments.num_blocks), Values(segments.num_blocks)};
  for (const SquaresSegment& segment : segments.list) {
    const Values random = Random(segment.count, segment.count);
    for (int64_t i = 0; i < segment.count; ++i) {
      const auto x = static_cast<float>(random[i]);
      values.data()[segment.begin + i] = x;
      sums.want[segment.first_block + i / kSquaresBlock] += static_cast<double>(x) * x;
    }
  }
  cuda::SumOfSquares({.values = values.data(),
                      .segments = segments.list.data(),
                      .num_segments = static_cast<int>(segments.list.size()),
                      .num_blocks = segments.num_blocks,
                      .partials = sums.partials.data()},
                     nullptr);
  return sums;
}

// 65536 additions of 2^-53 each, all of one sign.
TEST(SumOfSquaresKernel, EqualsThePlainSum) {
  const Sums sums = SumsWithGap(0);
  for (size_t block = 0; block < sums.want.size(); ++block)
    EXPECT_NEAR(sums.partials[block] / sums.want[block], 1, kSquaresBlock * 0x1p-53) << block;
}

TEST(SumOfSquaresKernel, BitsDoNotDependOnThePlace) {
  const Values want = SumsWithGap(4).partials;
  for (const int64_t gap : {0, 1, 2, 3}) EXPECT_EQ(SumsWithGap(gap).partials, want) << gap;
}

// The square of the largest fp32 number overflows fp32.
TEST(SumOfSquaresKernel, LargeValuesDoNotOverflow) {
  const float x = std::numeric_limits<float>::max();
  const SquaresSegment segment = {0, 1, 0};
  double sum = 0;
  cuda::SumOfSquares(
      {.values = &x, .segments = &segment, .num_segments = 1, .num_blocks = 1, .partials = &sum},
      nullptr);
  EXPECT_EQ(sum, static_cast<double>(x) * x);
}

TEST(SumOfSquaresKernel, NoSegmentsWriteNothing) {
  const float x = 3;
  double sum = 7;
  cuda::SumOfSquares({.values = &x, .partials = &sum}, nullptr);
  EXPECT_EQ(sum, 7);
}

}  // namespace
}  // namespace halflife::kernels
