// The kernels compiled for AVX2. Only called if the processor supports it.
#include "kernels/polynomial_attention/cpu/kernels.h"

#include "kernels/common/cpu/avx2.h"

#include "kernels/polynomial_attention/cpu/body.h"

namespace halflife::kernels::cpu::polynomial {
const Kernels& Avx2Kernels() { return avx2::polynomial::kKernels; }
}  // namespace halflife::kernels::cpu::polynomial
