// Inner header: values less their mean, of which the backward of a normalised output is taken.
//
//   out_r = n_r / d_r,   n_r = scale q_r S_r,   d_r = scale q_r z_r + eps
//   dq_r = scale (S_r dout_r - z_r delta_r) / d_r,   delta_r = dout_r out_r
//
// S sums keys times values, z keys alone, in the same weights. So a mean m of the values is in S as
// z m^T and in out as m, and cancels in dq, as it does in dk and in gradients of decays, while the
// roundings of both parts stay. Keys above 0 add up in z over the n tokens heard, and what is left
// of S grows like sqrt(n): a rounding by 2^-9 becomes one of dq by some 2^-9 |m| sqrt(n), a tenth
// of it where m is 4 deviations of v and n is 600.
//
// As it cancels, any vector may be taken from all values of a row and head: S' = S - z m^T and
// out' = out - m are what v' = v - m would have given, and
//
//   dq_r = scale (S'_r dout_r - z_r delta'_r) / d_r,   delta'_r = dout_r out_r - dout_r m
//   delta'_r = q_r dq'_r - dout_r m eps / d_r
//       dq' is S's part of dq: from it, in fp32, and not from out, which was rounded beside m
//   R = dL/dS is as before; dL/dz at fixed S' is r' = r + R m
//
// With m the mean nothing large is left to cancel, however large it was. v' has the accuracy of a
// bf16 of its own size. The forward, whose output at a token may not know of later ones, keeps v as
// it is, and for S - z m^T two bf16 of each element of its checkpoints, 16 bits.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/blocks.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::decay {

struct CentreParams {
  DecayAttentionArgs args;
  int num_pieces;  // NumMeanPieces(args)
  float* sums;     // [num_pieces, B, Hv, V]: scratch
  float* mean;     // [B, Hv, V]; what is not finite counts as 0, so that no other row hears of it
  bf16* centred;   // [B, T, Hv, V]: v - mean
};
void LaunchCentre(const CentreParams& params, cudaStream_t stream);

// shifted = norms + sign states mean, [num_sequences, H, K] of [num_sequences, H, K, V].
struct ShiftNormsParams {
  DecayAttentionArgs args;
  const float* mean;  // [B, Hv, V]
  const float* states;
  const float* norms;  // null: 0
  float sign;
  float* shifted;  // may be norms
};
void LaunchShiftNorms(const ShiftNormsParams& params, cudaStream_t stream);

}  // namespace halflife::kernels::decay
