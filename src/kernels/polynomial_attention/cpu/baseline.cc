// The kernels for any machine.
#include "kernels/polynomial_attention/cpu/kernels.h"

#include "kernels/common/cpu/baseline.h"

#include "kernels/polynomial_attention/cpu/body.h"

namespace halflife::kernels::cpu::polynomial {
const Kernels& BaselineKernels() { return baseline::polynomial::kKernels; }
}  // namespace halflife::kernels::cpu::polynomial
