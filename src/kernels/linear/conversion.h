// bf16 to fp32 and back on the CPU, for products of bf16 that run in fp32
// (ops/linear/widened.h).
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

namespace halflife::kernels::cpu {

// `count` elements of x into y, which do not overlap; the second rounds to nearest even.
void WidenRange(const Bf16* x, float* y, int64_t count);
void NarrowRange(const float* x, Bf16* y, int64_t count);

}  // namespace halflife::kernels::cpu
