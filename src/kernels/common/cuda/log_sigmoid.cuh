// The log decay of a gate on the device.
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/rows/decay_gates_args.h"

namespace halflife::kernels::rows {

// scale ln sigmoid(z). fminf drops a NaN, but the exponential keeps it.
HL_DEVICE float ScaledLogSigmoid(float z, float scale) {
  return scale * (fminf(z, 0.0f) - log1pf(expf(-fabsf(z))));
}
// The same with a lower bound. A NaN stays a NaN.
HL_DEVICE float GateLogDecay(float z, const DecayGateForm& form) {
  const float decay = ScaledLogSigmoid(z, form.scale);
  return decay < form.floor ? form.floor : decay;
}

}  // namespace halflife::kernels::rows
