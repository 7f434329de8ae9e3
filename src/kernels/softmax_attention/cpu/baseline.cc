// The kernels for any machine.
#include "kernels/softmax_attention/cpu/kernels.h"

#include "kernels/common/cpu/baseline.h"

#include "kernels/softmax_attention/cpu/body.h"

namespace halflife::kernels::cpu::softmax_attention {
const Kernels& BaselineKernels() { return baseline::softmax_attention::kKernels; }
}  // namespace halflife::kernels::cpu::softmax_attention
