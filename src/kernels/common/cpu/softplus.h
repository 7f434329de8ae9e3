// The softplus of the step and decay gates on the CPU.
#pragma once

#include "kernels/common/cpu/math.h"

namespace halflife::kernels::cpu {

// ln(1 + e^z) with a small relative error for every z.
HL_INLINE float SoftPlus(float z) {
  const float positive = z < 0.0f ? 0.0f : z;  // NaN stays NaN
  return positive + LogOnePlus(Exp(z < 0.0f ? z : -z));
}

}  // namespace halflife::kernels::cpu
