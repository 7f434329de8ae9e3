// Conversions between bf16 and fp32 on the CPU, for bf16 products that are computed in fp32
// (ops/linear/widened.h).
#pragma once

#include <cstdint>

#include "core/bfloat16.h"

namespace halflife::kernels::cpu {

// Convert `count` elements of x to y, which must not overlap. NarrowRange() rounds to nearest even.
void WidenRange(const Bf16* x, float* y, int64_t count);
void NarrowRange(const float* x, Bf16* y, int64_t count);

}  // namespace halflife::kernels::cpu
