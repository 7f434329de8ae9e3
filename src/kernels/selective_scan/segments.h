// The selective scan over rows that lie on several ranks.
#pragma once

#include "kernels/selective_scan/selective_scan.h"

namespace halflife::kernels {

// inputs.segment is given. `y` alone: no rank but the last has the rows' final state.
SelectiveScanOutputs OverSegments(const SelectiveScanInputs& inputs);

}  // namespace halflife::kernels
