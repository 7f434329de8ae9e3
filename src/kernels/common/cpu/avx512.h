// The target of files that are compiled for AVX-512 as a whole. They include this after the headers
// whose inline functions and templates other files share, whose instances here would have these
// instructions, and before those that are written for HL_SIMD_BYTES (the width of a vector) and
// HL_SIMD_NAMESPACE. Elsewhere than on x86-64 the namespace is narrow, and unused.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#define HL_SIMD_BYTES 64
#else
#define HL_SIMD_BYTES 16
#endif
#define HL_SIMD_NAMESPACE avx512
