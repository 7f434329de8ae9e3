// Selects the compiler target of a source file X_isa.cc. CMake compiles such a file once per
// instruction set and defines HL_ISA_BASELINE, HL_ISA_AVX2 or HL_ISA_AVX512. The file defines what
// HL_PER_INSTRUCTION_SET (instruction_set.h) declares, in the namespace HL_SIMD_NAMESPACE.
//
// Include order matters:
// 1. The headers with inline functions and templates that other files share. Their instances must
//    not contain instructions that only some machines support.
// 2. This header.
// 3. The headers written in terms of HL_SIMD_BYTES (the width of a vector) and HL_SIMD_NAMESPACE.
//
// The baseline has vectors of 128 bits, which every compiler target supports or splits. On other
// architectures than x86-64 the namespaces avx2 and avx512 have narrow vectors and are not used.
#pragma once

#if defined(HL_ISA_AVX512)
#define HL_SIMD_NAMESPACE avx512
#elif defined(HL_ISA_AVX2)
#define HL_SIMD_NAMESPACE avx2
#elif defined(HL_ISA_BASELINE)
#define HL_SIMD_NAMESPACE baseline
#else
#error "Only files named X_isa.cc include this header (src/kernels/CMakeLists.txt)"
#endif

#if defined(HL_ISA_BASELINE) || !defined(__x86_64__) || !defined(__GNUC__)
#define HL_SIMD_BYTES 16
#elif defined(HL_ISA_AVX2)
#pragma GCC target("avx2,fma,bmi,bmi2")
#define HL_SIMD_BYTES 32
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#define HL_SIMD_BYTES 64
#endif
