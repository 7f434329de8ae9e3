// The kernels compiled for AVX2. Only called if the processor supports it.
#include "kernels/focus_pool/cpu/kernels.h"

#include "kernels/common/cpu/avx2.h"

#include "kernels/focus_pool/cpu/body.h"

namespace halflife::kernels::cpu {
AllFocusKernels Avx2FocusKernels() { return avx2::All(); }
}  // namespace halflife::kernels::cpu
