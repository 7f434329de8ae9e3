// Fourier transforms of a power of two of points, in place and without a permutation. The forward
// uses decimation in frequency, radix 4, and leaves the spectrum in permuted order. The inverse
// undoes the steps from last to first. A convolution only multiplies spectra element by element,
// for which the order does not matter.
//
// Split() turns a block of n points, at first all of them, into four blocks of n / 4, until one or
// two points are left. Two points become their sum and their difference. Shared by the CPU loops
// and the CUDA kernels. C++17.
#pragma once

#include "kernels/common/host_device.h"

namespace halflife::kernels::fft {

struct Complex {
  float re, im;
};
HL_EVERYWHERE constexpr Complex operator+(Complex a, Complex b) {
  return {a.re + b.re, a.im + b.im};
}
HL_EVERYWHERE constexpr Complex operator-(Complex a, Complex b) {
  return {a.re - b.re, a.im - b.im};
}
HL_EVERYWHERE constexpr Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// Returns a conj(b).
HL_EVERYWHERE constexpr Complex TimesConjugate(Complex a, Complex b) {
  return {a.re * b.re + a.im * b.im, a.im * b.re - a.re * b.im};
}
HL_EVERYWHERE constexpr Complex TimesI(Complex a) { return {-a.im, a.re}; }

// Points a quarter of a block apart: j, j + n / 4, j + n / 2 and j + 3 n / 4.
struct Points {
  Complex a, b, c, d;
};
struct Roots {
  Complex first, second, third;  // e^(-2 pi i j / n) to the powers of 1, 2 and 3
};

HL_EVERYWHERE constexpr Points Split(const Points& p, const Roots& root) {
  const Complex sum_ac = p.a + p.c, difference_ac = p.a - p.c;
  const Complex sum_bd = p.b + p.d, turned_bd = TimesI(p.d - p.b);
  return {sum_ac + sum_bd, (sum_ac - sum_bd) * root.second,
          (difference_ac + turned_bd) * root.first, (difference_ac - turned_bd) * root.third};
}
// Returns 4 times the points that Split() was given.
HL_EVERYWHERE constexpr Points Join(const Points& p, const Roots& root) {
  const Complex b = TimesConjugate(p.b, root.second), c = TimesConjugate(p.c, root.first),
                d = TimesConjugate(p.d, root.third);
  const Complex sum_ac = p.a + b, sum_bd = p.a - b;
  const Complex difference_ac = c + d, turned_bd = TimesI(c - d);
  return {sum_ac + difference_ac, sum_bd + turned_bd, sum_ac - difference_ac, sum_bd - turned_bd};
}

}  // namespace halflife::kernels::fft
