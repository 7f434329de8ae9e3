// The kernels compiled for the baseline instruction set, for any machine.
#include "kernels/decay_attention/cpu/kernels.h"

#include "kernels/common/cpu/baseline.h"

#include "kernels/decay_attention/cpu/body.h"

namespace halflife::kernels::cpu {
const Kernels& BaselineKernels() { return baseline::kKernels; }
}  // namespace halflife::kernels::cpu
