// Focus pooling of rows that are split over several ranks. With a window, a segment receives the
// tokens before it; without one, the sums of the segments before it.
#pragma once

#include "ops/focus_pool/focus_pool.h"

namespace halflife::ops {

// `inputs.segment` must be set, and config.want_state must be false.
FocusPoolOutput OverSegments(const FocusPoolInputs& inputs, const FocusPoolConfig& config);

}  // namespace halflife::ops
