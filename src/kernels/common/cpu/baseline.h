// Like avx512.h, for any machine: vectors of 128 bits, which every compiler target supports or
// splits.
#pragma once

#define HL_SIMD_BYTES 16
#define HL_SIMD_NAMESPACE baseline
