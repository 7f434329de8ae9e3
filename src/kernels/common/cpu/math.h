// Arithmetic shared by the loops of the CPU kernels: an exponential that vectorizes (libm's is a
// call per element), and bf16 storage. HL_INLINE functions are compiled for the instruction set of
// the calling loop (kernels/common/cpu/vectorised.h).
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "core/bfloat16.h"

#define HL_INLINE __attribute__((always_inline)) inline
#define HL_LAMBDA_INLINE __attribute__((always_inline))  // after a lambda's parameters

namespace halflife::kernels {

// e^x to 2 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, e^r by the minimax polynomial of Cephes' expf,
// 2^n through the exponent bits. The result is 0 below -87 (subnormal results are not worth a
// branch), infinity above 88.72, and NaN for NaN.
HL_INLINE float Exp(float x) {
  constexpr float kRound =
      12582912.0f;  // 1.5 x 2^23: adding it leaves round(x) in the low mantissa bits
  const float low = x < -87.0f ? -87.0f : x;
  const float clamped = low > 88.0f ? 88.0f : low;
  const float shifted = clamped * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound) + 127;
  const float y = p * std::bit_cast<float>(exponent << 23);
  const float bounded = x > 88.72f ? std::numeric_limits<float>::infinity() : y;
  return x < -87.0f ? 0.0f : bounded;
}

// ln(1 + x) for 0 <= x <= 1 with a small relative error: 2 artanh(s), s = x / (2 + x) <= 1/3, by
// its series.
HL_INLINE float LogOnePlus(float x) {
  const float s = x / (x + 2.0f), square = s * s;
  float p = square * (1.0f / 15) + 1.0f / 13;
  p = p * square + 1.0f / 11;
  p = p * square + 1.0f / 9;
  p = p * square + 1.0f / 7;
  p = p * square + 1.0f / 5;
  p = p * square + 1.0f / 3;
  return 2.0f * (s + s * square * p);
}

HL_INLINE float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

using halflife::Widen;  // for Bf16
HL_INLINE float Widen(float x) { return x; }

// Rounds x to storage of type T: to nearest, ties to even; NaN stays NaN.
template <typename T>
HL_INLINE T Narrow(float x);
template <>
HL_INLINE float Narrow<float>(float x) {
  return x;
}
template <>
HL_INLINE Bf16 Narrow<Bf16>(float x) {
  return RoundToBf16(x);
}

}  // namespace halflife::kernels
