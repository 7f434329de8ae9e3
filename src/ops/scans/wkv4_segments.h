// RWKV-4's time mixing over rows that lie on several ranks.
#pragma once

#include "ops/scans/wkv4.h"

namespace halflife::ops {

// inputs.segment is given. `out` alone: no rank but the last has the rows' final state.
WkvOutputs OverSegments(const WkvInputs& inputs);

}  // namespace halflife::ops
