// Decay attention over rows that lie on several ranks: the states, perhaps with log scales, are
// exchanged between the segments.
#pragma once

#include "ops/decay_attention/decay_attention.h"

namespace halflife::ops {

// inputs.segment is given. `out` alone: no rank but the last has the rows' final state.
DecayAttentionOutput OverSegments(const DecayAttentionInputs& inputs,
                                  const DecayAttentionConfig& config);

}  // namespace halflife::ops
