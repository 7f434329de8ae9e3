// The loops compiled for AVX2. Only called if the processor supports it.
#include "kernels/scans/wkv4/cpu/kernels.h"

#include "kernels/common/cpu/avx2.h"

#include "kernels/scans/wkv4/cpu/body.h"

namespace halflife::kernels::cpu {
const WkvKernels& Avx2WkvKernels() { return avx2::kWkvKernels; }
}  // namespace halflife::kernels::cpu
