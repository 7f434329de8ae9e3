// Sine and cosine that vectorize on the CPU and need no stack frame on a device, where the built-in
// ones have a slow path for large arguments. Accurate to 2 ulp, or 2^-24 near a zero: quarter turns
// are subtracted in fp64, and the rest uses the minimax polynomials of Cephes' sinf and cosf.
// Beyond 1e7, where adjacent fp32 numbers are a radian apart, the results are those of 0.
// Non-finite arguments give NaN.
#pragma once

#include "kernels/common/host_device.h"

namespace halflife::kernels {

struct SinCos {
  float sin, cos;
};

HL_EVERYWHERE constexpr SinCos SinCosOf(float x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 x 2^52: adding it rounds to an integer
  const bool near = x > -1e7f && x < 1e7f;
  const double turned = near ? static_cast<double>(x) : 0.0;
  const double quarters = (turned * 0.63661977236758134308 + kRound) - kRound;
  const auto rest = static_cast<float>(turned - quarters * 1.57079632679489661923);
  const int quadrant = static_cast<int>(quarters) & 3;
  const float r = near ? rest : x - x, z = r * r;
  const float sine =
      r + r * z * ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f);
  const float cosine =
      1.0f - 0.5f * z +
      z * z * ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f);
  const bool swapped = (quadrant & 1) != 0;
  const float s = swapped ? cosine : sine, c = swapped ? sine : cosine;
  return {(quadrant & 2) != 0 ? -s : s, quadrant == 1 || quadrant == 2 ? -c : c};
}

}  // namespace halflife::kernels
