// The kernels compiled for AVX-512. Only called if the processor supports it.
#include "kernels/softmax_attention/cpu/kernels.h"

#include "kernels/common/cpu/avx512.h"

#include "kernels/softmax_attention/cpu/body.h"

namespace halflife::kernels::cpu::softmax_attention {
const Kernels& Avx512Kernels() { return avx512::softmax_attention::kKernels; }
}  // namespace halflife::kernels::cpu::softmax_attention
