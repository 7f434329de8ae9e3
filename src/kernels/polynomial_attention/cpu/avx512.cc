// The kernels compiled for AVX-512. Only called if the processor supports it.
#include "kernels/polynomial_attention/cpu/kernels.h"

#include "kernels/common/cpu/avx512.h"

#include "kernels/polynomial_attention/cpu/body.h"

namespace halflife::kernels::cpu::polynomial {
const Kernels& Avx512Kernels() { return avx512::polynomial::kKernels; }
}  // namespace halflife::kernels::cpu::polynomial
