// Polynomial attention over rows that lie on several ranks: a state is what came before plus a
// segment's own tokens, or these alone where a document started.
#pragma once

#include "ops/polynomial_attention/polynomial_attention.h"

namespace halflife::ops {

// inputs.segment is given. `out` alone: no rank but the last has the rows' final state.
PolynomialAttentionOutput OverSegments(const PolynomialAttentionInputs& inputs,
                                       const PolynomialAttentionConfig& config);

}  // namespace halflife::ops
