// RWKV-4's time mixing of rows that are split over several ranks.
#pragma once

#include "ops/scans/wkv4.h"

namespace halflife::ops {

// `inputs.segment` must be set. Returns only `out`: no rank but the last has the final state of a
// row.
WkvOutputs OverSegments(const WkvInputs& inputs);

}  // namespace halflife::ops
