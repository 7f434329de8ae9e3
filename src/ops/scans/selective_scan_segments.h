// The selective scan over rows that lie on several ranks.
#pragma once

#include "ops/scans/selective_scan.h"

namespace halflife::ops {

// inputs.segment is given. `y` alone: no rank but the last has the rows' final state.
SelectiveScanOutputs OverSegments(const SelectiveScanInputs& inputs);

}  // namespace halflife::ops
