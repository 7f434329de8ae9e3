// Focus pooling over rows that lie on several ranks: of a window, the tokens before a segment; of
// all tokens, the sums of the segments before it.
#pragma once

#include "ops/focus_pool/focus_pool.h"

namespace halflife::ops {

// inputs.segment is given, config.want_state is false.
FocusPoolOutput OverSegments(const FocusPoolInputs& inputs, const FocusPoolConfig& config);

}  // namespace halflife::ops
