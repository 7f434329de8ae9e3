// The bfloat16 storage type (the upper half of an fp32) and the rounding to it that all CPU code
// shares.
//
//   const Bf16 x = RoundToBf16(0.1f);
//   const float y = Widen(x);  // 0.10009765625
//
// Conversions are always inlined, so that a loop compiled for several instruction sets also
// compiles the conversion for each of them. CUDA sources are C++17: they see only the type and
// convert on the device.
#pragma once

#if __cplusplus >= 202002L
#include <bit>
#endif
#include <cstdint>

namespace halflife {

struct Bf16 {
  uint16_t bits;
};

#if __cplusplus >= 202002L
[[gnu::always_inline]] constexpr float Widen(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

// Rounds to nearest, ties to even. Values beyond the largest finite bf16 become infinity. A NaN
// stays a NaN and becomes quiet.
[[gnu::always_inline]] constexpr Bf16 RoundToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>(x != x ? (bits >> 16 | 0x40) : rounded)};
}
#endif

}  // namespace halflife
