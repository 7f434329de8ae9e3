// The loops compiled for AVX2; run only where the processor has it.
#include "kernels/wkv4/cpu/kernels.h"

#include "kernels/cpu/avx2.h"

#include "kernels/wkv4/cpu/body.h"

namespace halflife::kernels::cpu {
const WkvKernels& Avx2WkvKernels() { return avx2::kWkvKernels; }
}  // namespace halflife::kernels::cpu
