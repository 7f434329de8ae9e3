// Subtraction of the mean from the values, for the backward of a normalised output. Internal
// header.
//
//   out_r = n_r / d_r,   n_r = scale q_r S_r,   d_r = scale q_r z_r + eps
//   dq_r = scale (S_r dout_r - z_r delta_r) / d_r,   delta_r = dout_r out_r
//
// S sums keys times values and z sums keys, with the same weights. A mean m of the values therefore
// adds z m^T to S and m to out. It cancels in dq, in dk and in gradients of decays, but the
// rounding errors of both parts do not. Positive keys add up in z over the n tokens seen, while the
// rest of S grows like sqrt(n). A rounding error of 2^-9 then causes an error of about 2^-9 |m|
// sqrt(n) in dq: a tenth of dq if m is 4 standard deviations of v and n is 600.
//
// Because it cancels, any vector m may be subtracted from all values of a row and head. The results
// S' = S - z m^T and out' = out - m are those of v' = v - m, and
//
//   dq_r = scale (S'_r dout_r - z_r delta'_r) / d_r,   delta'_r = dout_r out_r - dout_r m
//   delta'_r = q_r dq'_r - dout_r m eps / d_r
//       dq' is the part of dq that comes from S. delta' is computed from it in fp32, not from out,
//       which was rounded together with m.
//   R = dL/dS does not change; dL/dz for fixed S' is r' = r + R m
//
// If m is the mean, no large terms are left to cancel, however large the mean is. v' has the
// accuracy of an operand of its own size. The forward must not use later tokens, so it keeps v
// unchanged. To make S - z m^T accurate to 16 bits, it stores each element of its checkpoints as
// the sum of two bf16.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/blocks.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::decay {

struct SubtractMeanParams {
  DecayAttentionArgs args;
  int num_pieces;  // NumMeanPieces(args)
  float* sums;     // [num_pieces, B, Hv, V]: scratch
  float* mean;    // [B, Hv, V]; non-finite values count as 0, so that they do not affect other rows
  void* centred;  // [B, T, Hv, V]: v - mean, in the type of v
};
void LaunchSubtractMean(const SubtractMeanParams& params, cudaStream_t stream);

// shifted = norms + sign * (states mean): [num_sequences, H, K] from [num_sequences, H, K, V].
struct ShiftNormsParams {
  DecayAttentionArgs args;
  const float* mean;  // [B, Hv, V]
  const float* states;
  const float* norms;  // null: 0
  float sign;
  float* shifted;  // may alias norms
};
void LaunchShiftNorms(const ShiftNormsParams& params, cudaStream_t stream);

}  // namespace halflife::kernels::decay
