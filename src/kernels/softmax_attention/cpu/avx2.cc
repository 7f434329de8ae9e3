// The kernels compiled for AVX2. Only called if the processor supports it.
#include "kernels/softmax_attention/cpu/kernels.h"

#include "kernels/common/cpu/avx2.h"

#include "kernels/softmax_attention/cpu/body.h"

namespace halflife::kernels::cpu::softmax_attention {
const Kernels& Avx2Kernels() { return avx2::softmax_attention::kKernels; }
}  // namespace halflife::kernels::cpu::softmax_attention
