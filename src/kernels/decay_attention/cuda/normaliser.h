// Inner header: the normaliser around the scans on tensor cores, whose sums of keys are the output
// of a scan over a column of ones.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/decay_attention/args.h"

namespace halflife::kernels::decay {

// The column's one value.
void LaunchOne(bf16* one, cudaStream_t stream);

// args.out = sum of numerators / (sum of sums + eps); args.norm_denom, if it is there, the divisor.
struct NormaliseParams {
  DecayAttentionArgs args;
  int num_slices;           // of K
  const float* numerators;  // [slices, B, T, H, V]
  const float* sums;        // [slices, B, T, H]
};
void LaunchNormalise(const NormaliseParams& params, cudaStream_t stream);

// What the rows of dL/d(numerator) and dL/d(sum of keys) are times dout and times ones:
// 1 / norm_denom and -sum_v dout out / norm_denom; and the column's one.
struct NormaliserGradientParams {
  DecayAttentionArgs args;
  TensorView dout;                // [B, T, H, V]
  float *of_numerator, *of_sums;  // [B, T, H]
  bf16* one;
};
void LaunchNormaliserGradient(const NormaliserGradientParams& params, cudaStream_t stream);

}  // namespace halflife::kernels::decay
