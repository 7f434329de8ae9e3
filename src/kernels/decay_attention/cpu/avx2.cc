// The kernels compiled for AVX2. Run them only if the processor supports it.
#include "kernels/decay_attention/cpu/kernels.h"

#include "kernels/common/cpu/avx2.h"

#include "kernels/decay_attention/cpu/body.h"

namespace halflife::kernels::cpu {
const Kernels& Avx2Kernels() { return avx2::kKernels; }
}  // namespace halflife::kernels::cpu
