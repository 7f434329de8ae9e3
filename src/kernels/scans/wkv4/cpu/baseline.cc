// The loops for any machine.
#include "kernels/scans/wkv4/cpu/kernels.h"

#include "kernels/common/cpu/baseline.h"

#include "kernels/scans/wkv4/cpu/body.h"

namespace halflife::kernels::cpu {
const WkvKernels& BaselineWkvKernels() { return baseline::kWkvKernels; }
}  // namespace halflife::kernels::cpu
