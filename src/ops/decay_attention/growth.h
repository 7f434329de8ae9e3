// Constant decays above 1 with the normaliser, over any length, using the kernels for decays up to
// 1.
//
// Let mu = max(0, largest log_decay of the head), S_t = exp(l_t) S^_t, z_t = exp(l_t) z^_t and l_t
// = l_0 + mu t. Then
//
//   S_t = exp(log_decay) S_{t-1} + c_t k_t^T v_t   becomes
//   S^_t = exp(log_decay - mu) S^_{t-1} + exp(-l_t) c_t k_t^T v_t.
//
// The decay is now at most 1, and the scale of new keys shrinks instead of the weight of old keys
// growing. Numerator and denominator of a row contain the same factor exp(l_t), so the output is
// the same as with S and does not depend on mu. Gradients with mu and l held constant are therefore
// exact. norm_eps is added to the denominator read from z^, in which the first key has a weight of
// order one. If exp(-l_t) underflows to 0 in fp32, the key weighs less than 1e-38 of the first key
// in the growing channel. Before the first key that key_scale does not mask, there is no state and
// l is 0, also at a document's start; l counts from that key.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/decay_attention/decay_attention.h"

namespace halflife::ops {

struct ScaledInputs {
  // log_decay - mu and key_scale exp(-l), without a log_scale; differentiable in the original
  // inputs. With log_key_scale, the decay is per token.
  DecayAttentionInputs inputs;
  // exp(M - l) [B, T, H] in the dtype of key_scale, where M is log_key_scale
  at::Tensor key_factor;
  at::Tensor final_log_scale;  // [sequences, H] fp64
};
// Expects checked shapes of `inputs`. Error (exit 2) if the decay is per token or if there is no
// normaliser.
ScaledInputs ScaleGrowth(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config);

// The same for one token: advances log_scale [B, H] by one token in place, and returns inputs with
// scaled log_decay and key_scale.
DecayAttentionStepInputs ScaleGrowthOfStep(const DecayAttentionStepInputs& inputs,
                                           const DecayAttentionConfig& config, DecayState& state);

}  // namespace halflife::ops
