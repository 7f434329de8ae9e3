// The functions of the selective scan on a vector of channels. Compiled per instruction set. The
// decays e^{step a} are nearly all of its work, so the exponential uses base 2 and only the
// precision of fp32; `a` is multiplied by kDecayBase in advance.
#pragma once

#include "kernels/common/cpu/microkernel.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

// Decay(kDecayBase a step) = e^{a step}.
template <typename C>
constexpr C kDecayBase = C(1);
template <>
inline constexpr float kDecayBase<float> = 1.44269504f;  // 1 / ln 2

// 2^x to 2 ulp (plus the rounding of x) for x from -126 to 127. x is clamped to this range; NaN
// stays NaN. x = n + r with |r| <= 1/2, 2^r by its minimax polynomial, and n added to the exponent
// bits.
HL_INLINE Vec<float> Decay(const Vec<float>& x) {
  const Vec<float> zero = {};
  const Vec<float> low = x < -126.0f ? zero - 126.0f : x;
  const Vec<float> clamped = low > 127.0f ? zero + 127.0f : low;
  const Vec<float> shifted = clamped + 12582912.0f;  // 1.5 x 2^23: its low bits are n
  const Vec<float> r = clamped - (shifted - 12582912.0f);
  Vec<float> p = r * 1.32647285e-3f + 9.67151579e-3f;
  p = p * r + 5.55073395e-2f;
  p = p * r + 2.40222424e-1f;
  p = p * r + 6.93147004e-1f;
  p = p * r + 1.0f;
  return (Vec<float>)((Vec<int32_t>)p + ((Vec<int32_t>)shifted << 23));
}
inline Vec<double> Decay(const Vec<double>& x) { return Exp(x); }

// ln(1 + x) for 0 <= x <= 1 with a small relative error: 2 artanh(s), s = x / (2 + x) <= 1/3, by
// its series.
HL_INLINE Vec<float> LogOnePlus(const Vec<float>& x) {
  const Vec<float> s = x / (x + 2.0f), square = s * s;
  Vec<float> p = square * (1.0f / 15) + 1.0f / 13;
  p = p * square + 1.0f / 11;
  p = p * square + 1.0f / 9;
  p = p * square + 1.0f / 7;
  p = p * square + 1.0f / 5;
  p = p * square + 1.0f / 3;
  return 2.0f * (s + s * square * p);
}
inline Vec<double> LogOnePlus(const Vec<double>& x) {
  Vec<double> y = {};
  for (int i = 0; i < kLanes<double>; ++i) y[i] = __builtin_log1p(x[i]);
  return y;
}

// softplus(x) and its derivative, the sigmoid.
template <typename C>
struct Softplus {
  HL_INLINE explicit Softplus(const Vec<C>& x) {
    const Vec<C> zero = {}, one = zero + C(1);
    const Vec<C> less = Exp(x > zero ? -x : x);  // e^{-|x|}
    value = (x > zero ? x : zero) + LogOnePlus(less);
    slope = (x > zero ? one : less) / (one + less);
  }
  Vec<C> value, slope;
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
