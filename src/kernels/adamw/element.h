// One element's update, the same source on the CPU and on the device.
#pragma once

#include <cmath>

#include "kernels/adamw/args.h"

#ifdef __CUDACC__
#define HL_ADAMW_INLINE __host__ __device__ __forceinline__
#else
#define HL_ADAMW_INLINE __attribute__((always_inline)) inline
#endif

namespace halflife::kernels {

HL_ADAMW_INLINE float AdamWElement(const AdamWFactors& f, float weight_decay, float grad, float w,
                                   float& m, float& v) {
  const float g = grad * f.grad_factor;
  m = f.beta1 * m + f.one_minus_beta1 * g;
  v = f.beta2 * v + f.one_minus_beta2 * (g * g);
  const float decayed = w - f.lr * weight_decay * w;
  return decayed - f.step_size * m / (sqrtf(v) * f.denom_scale + f.eps);
}

}  // namespace halflife::kernels
