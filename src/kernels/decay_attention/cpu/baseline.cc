// The kernels for any machine: vectors of 128 bits, which every compiler target has or splits.
#include "kernels/decay_attention/cpu/kernels.h"

#define HL_SIMD_BYTES 16
#define HL_SIMD_NAMESPACE baseline
#define HL_SIMD_NAME "baseline"
#include "kernels/decay_attention/cpu/body.h"

namespace halflife::kernels::cpu {
const Kernels& BaselineKernels() { return baseline::kKernels; }
}  // namespace halflife::kernels::cpu
