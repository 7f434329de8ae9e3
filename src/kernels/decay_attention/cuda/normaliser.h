// The steps of the normaliser outside the tensor-core scans. A forward scan divides by the sums of
// keys itself (key_sums.cuh), unless each slice of K has only a part of them. A backward treats
// them as the output of a scan in which v is a column of ones. Internal header.
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::decay {

// Stores the value 1, which is read with stride 0 as the column of ones.
void LaunchStoreOne(bf16* one, cudaStream_t stream);

// args.out = sum of numerators / (sum of sums + eps), summed over slices of K. Also stores the
// divisor in args.norm_denom, if it is not null.
struct NormaliseParams {
  DecayAttentionArgs args;
  int num_slices;           // slices of K
  const float* numerators;  // [slices, B, T, H, V]
  const float* sums;        // [slices, B, T, H]
};
void LaunchNormalise(const NormaliseParams& params, cudaStream_t stream);

// Computes the factor [B, T, H] for which factor / norm_denom is dL/d(sum of keys). It is -delta'
// of mean_subtraction.h, computed from the part of dq that the scan over centred values leaves.
struct NormaliserFactorParams {
  DecayAttentionArgs args;
  TensorView dout;    // [B, T, H, V]
  const float* mean;  // [B, Hv, V]
  int num_slices;     // slices of V
  const float* dq;    // [slices, B, T, H, K]
  float* factor;
};
void LaunchNormaliserFactor(const NormaliserFactorParams& params, cudaStream_t stream);
// The same for values without subtracted mean. It uses args.out as rounded by the forward: these
// errors have either sign and do not accumulate.
struct OutputFactorParams {
  DecayAttentionArgs args;
  TensorView dout;
  float* factor;
};
void LaunchOutputFactor(const OutputFactorParams& params, cudaStream_t stream);

}  // namespace halflife::kernels::decay
