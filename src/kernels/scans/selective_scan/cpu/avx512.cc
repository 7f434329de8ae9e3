// The loops compiled for AVX-512. Only called if the processor supports it.
#include "kernels/scans/selective_scan/cpu/kernels.h"

#include "kernels/common/cpu/avx512.h"

#include "kernels/scans/selective_scan/cpu/body.h"

namespace halflife::kernels::cpu {
const ScanKernels& Avx512ScanKernels() { return avx512::kScanKernels; }
}  // namespace halflife::kernels::cpu
