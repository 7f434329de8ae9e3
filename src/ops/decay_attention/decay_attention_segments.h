// Decay attention over rows that are split across ranks: the segments exchange their states, with
// log scales if growth is allowed.
#pragma once

#include "ops/decay_attention/decay_attention.h"

namespace halflife::ops {

// Requires inputs.segment. Returns only `out`, because only the last rank has the final state.
DecayAttentionOutput OverSegments(const DecayAttentionInputs& inputs,
                                  const DecayAttentionConfig& config);

}  // namespace halflife::ops
