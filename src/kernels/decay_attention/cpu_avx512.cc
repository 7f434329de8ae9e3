// The kernels compiled for AVX-512; run only where the processor has it.
#include "kernels/decay_attention/cpu_kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#define HL_SIMD_BYTES 64
#else
#define HL_SIMD_BYTES 16
#endif
#define HL_SIMD_NAMESPACE avx512
#define HL_SIMD_NAME "AVX-512"
#include "kernels/decay_attention/cpu_body.h"

namespace halflife::kernels::cpu {
const Kernels& Avx512Kernels() { return avx512::kKernels; }
}  // namespace halflife::kernels::cpu
