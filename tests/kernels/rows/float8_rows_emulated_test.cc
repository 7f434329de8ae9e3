// The emulated CUDA kernel that converts rows to e4m3 writes the bits of the CPU loop, and both
// write those of the formula.
#include <bit>
#include <cmath>

#include "core/float8.h"
#include "kernels/rows/float8_rows_args.h"
#include "kernels/rows_support.h"

namespace halflife::kernels {
namespace {

using test::Array;
using test::Random;
using test::Values;

struct Float8Case {
  int64_t num_rows, width, stride;
  int shift = 0;  // Elements by which the rows are misaligned.
};

// Less than a pack; rows of one lane, a warp, several warps and more than one pack per thread;
// columns of a wider matrix; misaligned rows; fewer rows than a block, and none.
constexpr Float8Case kFloat8Cases[] = {
    {3, 5, 5},       {70, 16, 16},    {9, 256, 256},   {5, 264, 272},
    {4, 1024, 1032}, {3, 4096, 4096}, {2, 4608, 4608}, {6, 48, 48, /*shift=*/1},
    {7, 96, 99},     {0, 64, 64}};

struct Float8Result {
  std::vector<uint8_t> codes;
  std::vector<float> factors;
};

// `values` of rows with magnitudes from 2^-130 to 2^120, a row of zeros, one with an infinity and
// one with a NaN.
Values RowsOfManyScales(const Float8Case& c) {
  Values values = Random(c.num_rows * c.stride, 5);
  for (int64_t row = 0; row < c.num_rows; ++row)
    for (int64_t i = 0; i < c.stride; ++i) {
      double& value = values[row * c.stride + i];
      value = row % 5 == 1 ? 0 : std::ldexp(value, static_cast<int>(row * 47 % 250) - 130);
      if (i == c.width / 2 && row % 5 == 3) value = -INFINITY;
      if (i == c.width - 1 && row % 5 == 4) value = NAN;
    }
  return values;
}

template <typename Kernel>
Float8Result Convert(const Float8Case& c, const Array<Bf16>& x, const Kernel& kernel) {
  Float8Result result = {.codes = std::vector<uint8_t>(c.num_rows * c.width, 0xaa),
                         .factors = std::vector<float>(c.num_rows)};
  kernel(Float8Rows{.num_rows = c.num_rows,
                    .width = c.width,
                    .x = x.data(),
                    .x_stride = c.stride,
                    .codes = result.codes.data(),
                    .factors = result.factors.data()});
  return result;
}

TEST(Float8Kernel, WritesTheBitsOfTheCpuAndTheFormula) {
  for (const Float8Case& c : kFloat8Cases) {
    SCOPED_TRACE(testing::Message() << c.num_rows << " x " << c.width << " in rows of " << c.stride
                                    << ", shift " << c.shift);
    const Array<Bf16> x(RowsOfManyScales(c), c.shift);
    const Float8Result want =
        Convert(c, x, [&](const Float8Rows& rows) { cpu::ConvertToFloat8(rows, 0, c.num_rows); });
    const Float8Result got =
        Convert(c, x, [](const Float8Rows& rows) { cuda::ConvertToFloat8(rows, nullptr); });
    EXPECT_EQ(got.codes, want.codes);
    std::vector<Bf16> values(c.num_rows * c.width);
    cpu::ConvertToFloat8({.num_rows = c.num_rows,
                          .width = c.width,
                          .x = x.data(),
                          .x_stride = c.stride,
                          .values = values.data()},
                         0, c.num_rows);
    for (int64_t row = 0; row < c.num_rows; ++row) {
      ASSERT_EQ(std::bit_cast<uint32_t>(got.factors[row]),
                std::bit_cast<uint32_t>(want.factors[row]))
          << row;
      uint32_t largest = 0;
      for (int64_t i = 0; i < c.width; ++i)
        largest = std::max(largest, uint32_t{x.data()[row * c.stride + i].bits & 0x7fffu} << 16);
      const auto scale = std::bit_cast<float>(Float8ScaleBits(largest));
      for (int64_t i = 0; i < c.width; ++i) {
        const uint8_t code = got.codes[row * c.width + i];
        const float scaled = Widen(x.data()[row * c.stride + i]) * scale;
        ASSERT_EQ(code, EncodeE4m3(std::bit_cast<uint32_t>(scaled))) << row << ", " << i;
        const float value = DecodeE4m3(code) * got.factors[row];
        const float stored = Widen(values[row * c.width + i]);
        ASSERT_TRUE(stored == value || (std::isnan(stored) && std::isnan(value))) << row;
      }
      EXPECT_EQ(std::isnan(got.factors[row]), row % 5 >= 3) << row;
    }
  }
}

}  // namespace
}  // namespace halflife::kernels
