// Fourier transforms of a power of two of points, in place and without a permutation: forward by
// decimation in frequency, four points at a time, which leaves the spectrum in an order of its own;
// back by the inverse of each step, last step first. Spectra in that order are multiplied element
// by element, which is all that a convolution asks of them.
//
// Blocks of n points, at first all of them, become by Split four blocks of n / 4, until one or two
// points are left; two become their sum and their difference. Shared by the CPU's loops and the
// CUDA kernels. C++17.
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
// a conj(b)
HL_EVERYWHERE constexpr Complex TimesConjugate(Complex a, Complex b) {
  return {a.re * b.re + a.im * b.im, a.im * b.re - a.re * b.im};
}
HL_EVERYWHERE constexpr Complex TimesI(Complex a) { return {-a.im, a.re}; }

// A quarter of a block apart: points j, j + n / 4, j + n / 2 and j + 3 n / 4.
struct Points {
  Complex a, b, c, d;
};
struct Roots {
  Complex first, second, third;  // e^(-2 pi i j / n) to the power of 1, 2 and 3
};

HL_EVERYWHERE constexpr Points Split(const Points& p, const Roots& root) {
  const Complex sum_ac = p.a + p.c, difference_ac = p.a - p.c;
  const Complex sum_bd = p.b + p.d, turned_bd = TimesI(p.d - p.b);
  return {sum_ac + sum_bd, (sum_ac - sum_bd) * root.second,
          (difference_ac + turned_bd) * root.first, (difference_ac - turned_bd) * root.third};
}
// 4 times what Split was given.
HL_EVERYWHERE constexpr Points Join(const Points& p, const Roots& root) {
  const Complex b = TimesConjugate(p.b, root.second), c = TimesConjugate(p.c, root.first),
                d = TimesConjugate(p.d, root.third);
  const Complex sum_ac = p.a + b, sum_bd = p.a - b;
  const Complex difference_ac = c + d, turned_bd = TimesI(c - d);
  return {sum_ac + difference_ac, sum_bd + turned_bd, sum_ac - difference_ac, sum_bd - turned_bd};
}

}  // namespace halflife::kernels::fft
