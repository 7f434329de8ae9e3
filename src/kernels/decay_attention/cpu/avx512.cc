// The kernels compiled for AVX-512. Run them only if the processor supports it.
#include "kernels/decay_attention/cpu/kernels.h"

#include "kernels/common/cpu/avx512.h"

#include "kernels/decay_attention/cpu/body.h"

namespace halflife::kernels::cpu {
const Kernels& Avx512Kernels() { return avx512::kKernels; }
}  // namespace halflife::kernels::cpu
