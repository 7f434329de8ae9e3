// The loops for any machine.
#include "kernels/wkv4/cpu/kernels.h"

#include "kernels/cpu/baseline.h"

#include "kernels/wkv4/cpu/body.h"

namespace halflife::kernels::cpu {
const WkvKernels& BaselineWkvKernels() { return baseline::kWkvKernels; }
}  // namespace halflife::kernels::cpu
