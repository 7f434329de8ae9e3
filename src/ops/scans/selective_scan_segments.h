// The selective scan of rows that are split over several ranks.
#pragma once

#include "ops/scans/selective_scan.h"

namespace halflife::ops {

// `inputs.segment` must be set. Returns only `y`: no rank but the last has the final state of a
// row.
SelectiveScanOutputs OverSegments(const SelectiveScanInputs& inputs);

}  // namespace halflife::ops
