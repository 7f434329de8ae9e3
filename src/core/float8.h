// The 8-bit floating-point type e4m3 (OCP FP8 specification, "E4M3": 1 sign bit, 4 exponent bits
// with bias 7, 3 mantissa bits) and the scale of a row that is stored in it.
//
// The largest number is 448, the smallest normal one 2^-6, and the smallest one 2^-9. There is no
// infinity. A row x is stored as the codes of x s with s = 2^floor(log2(448 / max |x|)). A power of
// two makes the scaling exact, so only the rounding to e4m3 has an error: at most 2^-4 of a number
// that is normal in e4m3. All functions take and return bits, so that the same integer arithmetic
// runs on host and device.
#pragma once

#if __cplusplus >= 202002L
#include <bit>
#endif
#include <cstdint>

#ifdef __CUDACC__
#define HL_FLOAT8 __host__ __device__ constexpr
#else
#define HL_FLOAT8 [[gnu::always_inline]] constexpr
#endif

namespace halflife {

inline constexpr uint8_t kE4m3NaN = 0x7f;
// The largest exponent of a row's scale. The smallest number of a row, 2^-9 / s, is then a normal
// fp32 and bf16 number.
inline constexpr int kMaxFloat8Exponent = 117;
inline constexpr uint32_t kQuietNaNBits = 0x7fc00000;

// Rounds an fp32 number, given by its bits, to the nearest e4m3, ties to even. Numbers above 448
// and infinities become 448. Every NaN becomes kE4m3NaN.
HL_FLOAT8 uint8_t EncodeE4m3(uint32_t bits) {
  const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  // Normal: the exponent changes its bias from 127 to 7, and 20 mantissa bits are rounded off.
  const uint32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
  // Subnormal: a multiple of 2^-9. For exponents below 116, the result is 0.
  const uint32_t exponent = magnitude >> 23;
  const uint32_t shift = exponent < 116 ? 25 : exponent > 120 ? 21 : 141 - exponent;
  const uint32_t mantissa = exponent < 116 ? 0 : (magnitude & 0x7fffff) | 0x800000;
  const uint32_t subnormal =
      (mantissa + (uint32_t{1} << (shift - 1)) - 1 + (mantissa >> shift & 1)) >> shift;
  const uint32_t finite = exponent > 120 ? normal : subnormal;
  const uint32_t code = magnitude >= 0x43e00000 ? 0x7e : finite;  // 448 and more
  return static_cast<uint8_t>(magnitude > 0x7f800000 ? kE4m3NaN : sign | code);
}

// Returns the bits of the fp32 scale s of a row whose largest magnitude has these bits: 1 for a row
// of zeros, NaN if the row has an infinity or a NaN.
HL_FLOAT8 uint32_t Float8ScaleBits(uint32_t largest_magnitude) {
  if (largest_magnitude == 0) return 127u << 23;
  if (largest_magnitude >= 0x7f800000) return kQuietNaNBits;
  // 448 is 1.75 x 2^8. A subnormal magnitude counts as exponent 0, which is beyond the limit.
  const int exponent = static_cast<int>(largest_magnitude >> 23) - 127;
  const int scale = 8 - exponent - ((largest_magnitude & 0x7fffff) > 0x600000 ? 1 : 0);
  return static_cast<uint32_t>(127 + (scale < kMaxFloat8Exponent ? scale : kMaxFloat8Exponent))
         << 23;
}

// Returns the bits of 1 / s, the factor by which a product with the row's codes is multiplied.
HL_FLOAT8 uint32_t Float8FactorBits(uint32_t scale_bits) {
  return scale_bits == kQuietNaNBits ? scale_bits : (254u << 23) - scale_bits;
}

#if __cplusplus >= 202002L
[[gnu::always_inline]] constexpr float DecodeE4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7f, sign = uint32_t{code & 0x80u} << 24;
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
  const uint32_t bits = magnitude == kE4m3NaN ? kQuietNaNBits
                        : magnitude < 8       ? std::bit_cast<uint32_t>(subnormal)
                                              : (magnitude + (120 << 3)) << 20;
  return std::bit_cast<float>(sign | bits);
}
#endif

}  // namespace halflife

#undef HL_FLOAT8
