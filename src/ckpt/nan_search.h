// Where a weight is not a number, at the pace of memory: every save and load of main weights asks.
#pragma once

#include <cstdint>

namespace halflife::ckpt {

// The first NaN of `count` values, or `count`.
int64_t FindNan(const float* values, int64_t count);

}  // namespace halflife::ckpt
