// The softplus of the step and decay gates on the device.
#pragma once

#include "kernels/common/cuda/device.h"

namespace halflife::kernels::rows {

// ln(1 + e^z). fmaxf drops a NaN, but the exponential keeps it.
HL_DEVICE float SoftPlus(float z) { return fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z))); }

}  // namespace halflife::kernels::rows
