// Like avx512.h, for AVX2.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2,fma,bmi,bmi2")
#define HL_SIMD_BYTES 32
#else
#define HL_SIMD_BYTES 16
#endif
#define HL_SIMD_NAMESPACE avx2
