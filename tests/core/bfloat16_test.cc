// Conversions between float and bfloat16 round to nearest even and keep infinity and NaN.
#include "core/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace halflife {
namespace {

TEST(Bfloat16, WhatItHoldsComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 x = {static_cast<uint16_t>(bits)};
    const float wide = Widen(x);
    if (std::isnan(wide)) continue;
    ASSERT_EQ(RoundToBf16(wide).bits, bits);
  }
}

// Tests values around the midpoint of each two neighbours: below it rounds down, above it up, and
// the midpoint rounds to the even one.
TEST(Bfloat16, NearestAndTiesToEven) {
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      const uint32_t low = bits | sign, middle = low << 16 | 0x8000;
      const auto rounded = [](uint32_t x) { return RoundToBf16(std::bit_cast<float>(x)).bits; };
      ASSERT_EQ(rounded(middle - 1), low);
      ASSERT_EQ(rounded(middle), low + low % 2);
      ASSERT_EQ(rounded(middle + 1), low + 1);
    }
  }
}

TEST(Bfloat16, TheLargestFloatIsInfiniteAndNanStaysNan) {
  EXPECT_EQ(RoundToBf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(RoundToBf16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  // NaN payloads whose upper half is empty or full must not become infinity or wrap around to zero.
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u}) {
    const Bf16 rounded = RoundToBf16(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(Widen(rounded))) << bits;
    EXPECT_EQ(rounded.bits >> 15, bits >> 31) << "the sign of " << bits;
  }
}

}  // namespace
}  // namespace halflife
