// bfloat16 in memory, the upper half of an fp32, and the CPU's one rounding to it.
//
//   const Bf16 x = RoundToBf16(0.1f);
//   const float y = Widen(x);  // 0.10009765625
//
// Always inlined, so that a loop compiled for several instruction sets takes the conversion along.
// CUDA sources are C++17: they see the type alone, and convert on the device.
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

// To the nearest, ties to even; beyond the largest, infinity. A NaN stays one, and quiet.
[[gnu::always_inline]] constexpr Bf16 RoundToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return {static_cast<uint16_t>(x != x ? (bits >> 16 | 0x40) : rounded)};
}
#endif

}  // namespace halflife
