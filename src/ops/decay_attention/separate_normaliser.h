// The normaliser with separate operands norm_q and norm_k, in two passes: one over v, and one over
// a column of ones, which yields the denominator. Rotary positions need it: the denominator uses
// unrotated q and k and therefore stays positive (Su et al., 2021, eq. 19).
#pragma once

#include "ops/decay_attention/decay_attention.h"

namespace halflife::ops {

// `inputs` must not need growth any more: ScaleGrowth has removed it.
DecayAttentionOutput NormaliseSeparately(const DecayAttentionInputs& inputs,
                                         const DecayAttentionConfig& config);
at::Tensor NormaliseStepSeparately(const DecayAttentionStepInputs& inputs,
                                   const DecayAttentionConfig& config, DecayState& state);

}  // namespace halflife::ops
