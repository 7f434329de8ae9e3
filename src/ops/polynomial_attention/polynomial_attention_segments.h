// Polynomial attention of rows that are split over several ranks. The state after a segment is the
// state before it plus the segment's own sums, or only the latter after a document start.
#pragma once

#include "ops/polynomial_attention/polynomial_attention.h"

namespace halflife::ops {

// `inputs.segment` must be set. Returns only `out`: no rank but the last has the final state of a
// row.
PolynomialAttentionOutput OverSegments(const PolynomialAttentionInputs& inputs,
                                       const PolynomialAttentionConfig& config);

}  // namespace halflife::ops
