// The kernels for any machine.
#include "kernels/focus_pool/cpu/kernels.h"

#include "kernels/common/cpu/baseline.h"

#include "kernels/focus_pool/cpu/body.h"

namespace halflife::kernels::cpu {
AllFocusKernels BaselineFocusKernels() { return baseline::All(); }
}  // namespace halflife::kernels::cpu
