// Finds NaN in main weights at the speed of memory. Every save and load calls it.
#pragma once

#include <cstdint>

namespace halflife::ckpt {

// Returns the index of the first NaN of `count` values, or `count`.
int64_t FindNan(const float* values, int64_t count);

}  // namespace halflife::ckpt
