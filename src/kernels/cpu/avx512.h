// The target of files that are compiled for AVX-512 as a whole; HasAvx512() says whether a machine runs their code. They
// include this after the headers whose inline functions other files share, and before those that are written for
// HL_SIMD_BYTES (the width of a vector) and HL_SIMD_NAMESPACE. Elsewhere than on x86-64 the namespace is narrow, and unused.
#pragma once

#include "kernels/cpu/math.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#define HL_SIMD_BYTES 64
#else
#define HL_SIMD_BYTES 16
#endif
#define HL_SIMD_NAMESPACE avx512
