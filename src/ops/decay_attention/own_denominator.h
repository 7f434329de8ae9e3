// The normaliser with operands of its own, norm_q and norm_k: two passes, one over v and one over a
// column of ones. Rotary positions under a normaliser want it, whose denominator stays unrotated
// and so positive (Su et al., 2021, eq. 19).
#pragma once

#include "ops/decay_attention/decay_attention.h"

namespace halflife::ops {

// Without growth, which the inputs have been freed of.
DecayAttentionOutput WithOwnDenominator(const DecayAttentionInputs& inputs,
                                        const DecayAttentionConfig& config);
at::Tensor StepWithOwnDenominator(const DecayAttentionStepInputs& inputs,
                                  const DecayAttentionConfig& config, DecayState& state);

}  // namespace halflife::ops
