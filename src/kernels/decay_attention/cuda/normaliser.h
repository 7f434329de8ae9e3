// Inner header: the normaliser around the scans on tensor cores. A forward scan divides by the sums
// of keys itself (key_sums.cuh) but where each slice of K has a part of them; a backward takes them
// as the output of a scan over a column of ones.
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::decay {

// The column's one value.
void LaunchOne(bf16* one, cudaStream_t stream);

// args.out = sum of numerators / (sum of sums + eps), over slices of K; args.norm_denom, if it is
// there, the divisor.
struct NormaliseParams {
  DecayAttentionArgs args;
  int num_slices;           // of K
  const float* numerators;  // [slices, B, T, H, V]
  const float* sums;        // [slices, B, T, H]
};
void LaunchNormalise(const NormaliseParams& params, cudaStream_t stream);

// The factor [B, T, H] that makes rows of ones dL/d(sum of keys), where `norm_denom` divides them
// as it does dout: -delta' of centre.h, of the part of dq that the scan over centred values leaves.
struct CentredFactorParams {
  DecayAttentionArgs args;
  TensorView dout;    // [B, T, H, V]
  const float* mean;  // [B, Hv, V]
  int num_slices;     // of V
  const float* dq;    // [slices, B, T, H, K]
  float* factor;
};
void LaunchCentredFactor(const CentredFactorParams& params, cudaStream_t stream);
// The same of values as they are, from args.out, as the forward has rounded it: errors of either
// sign, where nothing adds up rows of one sign.
struct OutputFactorParams {
  DecayAttentionArgs args;
  TensorView dout;
  float* factor;
};
void LaunchOutputFactor(const OutputFactorParams& params, cudaStream_t stream);

}  // namespace halflife::kernels::decay
