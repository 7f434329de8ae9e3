// The loops compiled for AVX-512. Only called if the processor supports it.
#include "kernels/scans/wkv4/cpu/kernels.h"

#include "kernels/common/cpu/avx512.h"

#include "kernels/scans/wkv4/cpu/body.h"

namespace halflife::kernels::cpu {
const WkvKernels& Avx512WkvKernels() { return avx512::kWkvKernels; }
}  // namespace halflife::kernels::cpu
