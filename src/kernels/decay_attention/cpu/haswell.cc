// The kernels compiled for AVX2; run only where the processor has it.
#include "kernels/decay_attention/cpu/kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2,fma,bmi,bmi2")  // after arch=, nothing compiled for x86-64 inlines
#define HL_SIMD_BYTES 32
#else
#define HL_SIMD_BYTES 16
#endif
#define HL_SIMD_NAMESPACE haswell
#define HL_SIMD_NAME "AVX2"
#include "kernels/decay_attention/cpu/body.h"

namespace halflife::kernels::cpu {
const Kernels& HaswellKernels() { return haswell::kKernels; }
}  // namespace halflife::kernels::cpu
