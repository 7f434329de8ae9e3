// The loops for any machine.
#include "kernels/scans/selective_scan/cpu/kernels.h"

#include "kernels/common/cpu/baseline.h"

#include "kernels/scans/selective_scan/cpu/body.h"

namespace halflife::kernels::cpu {
const ScanKernels& BaselineScanKernels() { return baseline::kScanKernels; }
}  // namespace halflife::kernels::cpu
