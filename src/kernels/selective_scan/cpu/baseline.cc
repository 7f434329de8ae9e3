// The loops for any machine.
#include "kernels/selective_scan/cpu/kernels.h"

#include "kernels/cpu/baseline.h"

#include "kernels/selective_scan/cpu/body.h"

namespace halflife::kernels::cpu {
const ScanKernels& BaselineScanKernels() { return baseline::kScanKernels; }
}  // namespace halflife::kernels::cpu
