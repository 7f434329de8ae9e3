// Constant decays above 1 under the normaliser, over any length, by the kernels for decays up to 1.
//
// With mu = max(0, largest log_decay of the head), S_t = exp(l_t) S^_t, z_t = exp(l_t) z^_t and l_t
// = l_0 + mu t,
//
//   S_t = exp(log_decay) S_{t-1} + c_t k_t^T v_t   becomes
//   S^_t = exp(log_decay - mu) S^_{t-1} + exp(-l_t) c_t k_t^T v_t:
//
// a decay of at most 1, and keys whose scale fades where the old ones' weight would have grown. A
// row divides numerator and denominator by the same exp(l_t), so the output is that of S and does
// not depend on mu: its gradients with mu and l held constant are the exact ones. (norm_eps is
// added to the denominator of z^, to which the first key gave order one.) Where exp(-l_t) is 0 in
// fp32 a key weighs less than 1e-38 of the first one in the channel that grows. Where there is no
// state yet, at a document's start as well, l is 0 up to the first key that key_scale does not
// mask, and counts from there.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/decay_attention/decay_attention.h"

namespace halflife::ops {

struct ScaledInputs {
  // log_decay - mu, key_scale exp(-l), no log_scale; differentiable in the originals. With
  // log_key_scale a decay per token.
  DecayAttentionInputs inputs;
  at::Tensor key_factor;       // exp(M - l) [B, T, H], in the type of key_scale
  at::Tensor final_log_scale;  // [sequences, H] fp64
};
// The shapes of `inputs` have been checked. Error (exit 2) for decays per token and without the
// normaliser.
ScaledInputs ScaleGrowth(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config);

// One token: moves log_scale [B, H] on by it, in place, and scales log_decay and key_scale.
DecayAttentionStepInputs ScaleGrowthOfStep(const DecayAttentionStepInputs& inputs,
                                           const DecayAttentionConfig& config, DecayState& state);

}  // namespace halflife::ops
