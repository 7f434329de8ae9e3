// The kernels compiled for AVX-512. Only called if the processor supports it.
#include "kernels/focus_pool/cpu/kernels.h"

#include "kernels/common/cpu/avx512.h"

#include "kernels/focus_pool/cpu/body.h"

namespace halflife::kernels::cpu {
AllFocusKernels Avx512FocusKernels() { return avx512::All(); }
}  // namespace halflife::kernels::cpu
