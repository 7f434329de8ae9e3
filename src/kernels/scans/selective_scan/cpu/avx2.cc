// The loops compiled for AVX2. Only called if the processor supports it.
#include "kernels/scans/selective_scan/cpu/kernels.h"

#include "kernels/common/cpu/avx2.h"

#include "kernels/scans/selective_scan/cpu/body.h"

namespace halflife::kernels::cpu {
const ScanKernels& Avx2ScanKernels() { return avx2::kScanKernels; }
}  // namespace halflife::kernels::cpu
