// e4m3 codes are the nearest numbers, and the scale of a row is the largest power of two with which
// the row fits.
#include "core/float8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/bfloat16.h"

namespace halflife {
namespace {

static_assert(DecodeE4m3(0x7e) == 448 && DecodeE4m3(0x08) == 0x1p-6f);
static_assert(DecodeE4m3(0x01) == 0x1p-9f && DecodeE4m3(0x80) == 0);
static_assert(EncodeE4m3(std::bit_cast<uint32_t>(-1.0f)) == 0xb8);

uint8_t Encode(float x) { return EncodeE4m3(std::bit_cast<uint32_t>(x)); }

// Returns the value of a code by the definition: sign, exponent with bias 7, mantissa.
double ByDefinition(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code >> 7 == 0 ? magnitude : -magnitude;
}

TEST(Float8, CodesAreTheNumbersOfTheDefinition) {
  for (int code = 0; code < 256; ++code) {
    const auto as_code = static_cast<uint8_t>(code);
    if ((code & 0x7f) == kE4m3NaN) {
      EXPECT_TRUE(std::isnan(DecodeE4m3(as_code)));
      continue;
    }
    ASSERT_EQ(DecodeE4m3(as_code), ByDefinition(as_code)) << code;
    ASSERT_EQ(Encode(DecodeE4m3(as_code)), code);
  }
}

// Returns the code of the number nearest to x, at most 448 in size. Of two equally near ones, it is
// the even code.
uint8_t Nearest(double x) {
  uint8_t best = 0;
  for (int code = 0; code < kE4m3NaN; ++code) {
    const double error = std::abs(std::abs(x) - ByDefinition(static_cast<uint8_t>(code))),
                 least = std::abs(std::abs(x) - ByDefinition(best));
    if (error < least || (error == least && code % 2 == 0)) best = static_cast<uint8_t>(code);
  }
  return best | (std::signbit(x) ? 0x80 : 0);
}

TEST(Float8, EncodesEveryBf16NumberToTheNearestOne) {
  for (const float scale : {1.0f, 0x1p-7f, 0x1p6f, 0x1p-120f, 0x1p117f}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float x = Widen({static_cast<uint16_t>(bits)}) * scale;
      ASSERT_EQ(Encode(x), std::isnan(x) ? kE4m3NaN : Nearest(x)) << x;
    }
  }
}

// fp32 numbers next to the midpoints, which bf16 does not hold.
TEST(Float8, TiesGoToTheEvenCode) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto low = static_cast<uint8_t>(code);
    const auto middle = static_cast<float>((ByDefinition(low) + ByDefinition(low + 1)) / 2);
    ASSERT_EQ(Encode(middle), code + code % 2);
    ASSERT_EQ(Encode(std::nextafter(middle, 0.0f)), code);
    ASSERT_EQ(Encode(std::nextafter(middle, 1000.0f)), code + 1);
  }
}

TEST(Float8, TheScaleIsTheLargestPowerOfTwoThatFits) {
  for (uint32_t bits = 1; bits < 0x7f80; ++bits) {
    const float largest = Widen({static_cast<uint16_t>(bits)});
    const uint32_t scale_bits = Float8ScaleBits(std::bit_cast<uint32_t>(largest));
    const auto scale = std::bit_cast<float>(scale_bits),
               factor = std::bit_cast<float>(Float8FactorBits(scale_bits));
    ASSERT_EQ(scale * factor, 1) << largest;
    ASSERT_LE(double{scale} * largest, 448) << largest;
    if (scale == 0x1p117f) continue;  // the limit
    ASSERT_GT(2 * double{scale} * largest, 448) << largest;
  }
  EXPECT_EQ(Float8ScaleBits(0), std::bit_cast<uint32_t>(1.0f));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const uint32_t scale = Float8ScaleBits(std::bit_cast<uint32_t>(bad));
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(scale)));
    EXPECT_TRUE(std::isnan(std::bit_cast<float>(Float8FactorBits(scale))));
  }
}

}  // namespace
}  // namespace halflife
