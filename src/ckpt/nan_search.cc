#include "ckpt/nan_search.h"

#include <algorithm>

namespace halflife::ckpt {

int64_t FindNan(const float* values, int64_t count) {
  constexpr int64_t kStride = 1024;
  for (int64_t begin = 0; begin < count; begin += kStride) {
    const int64_t end = std::min(begin + kStride, count);
    int32_t any = 0;  // As wide as a float, so the loop vectorises.
    for (int64_t i = begin; i < end; ++i) any |= values[i] != values[i];  // True only for NaN.
    if (any == 0) continue;
    return std::find_if(values + begin, values + end, [](float x) { return x != x; }) - values;
  }
  return count;
}

}  // namespace halflife::ckpt
