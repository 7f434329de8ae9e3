// The loops compiled for AVX-512; run only where the processor has it.
#include "kernels/scans/selective_scan/cpu/kernels.h"

#include "kernels/common/cpu/avx512.h"

#include "kernels/scans/selective_scan/cpu/body.h"

namespace halflife::kernels::cpu {
const ScanKernels& Avx512ScanKernels() { return avx512::kScanKernels; }
}  // namespace halflife::kernels::cpu
