// Sets the compiler target of a source file to AVX-512. Include order matters: first the headers
// with inline functions and templates that other files share, because their instances must not
// contain these instructions; then this header; then the headers written in terms of HL_SIMD_BYTES
// (the width of a vector) and HL_SIMD_NAMESPACE. On other architectures than x86-64 the namespace
// has narrow vectors and is not used.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#define HL_SIMD_BYTES 64
#else
#define HL_SIMD_BYTES 16
#endif
#define HL_SIMD_NAMESPACE avx512
