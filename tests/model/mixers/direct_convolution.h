// Convolutions as direct sums, for tests.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace halflife::test {

// Sums weight[c, 0, W-1-lag] u[t-lag, c] over lags below W; u [B, T, C], weight [C, 1, W].
inline at::Tensor ShortSum(const at::Tensor& u, const at::Tensor& weight) {
  at::Tensor sum = at::zeros_like(u);
  const int64_t taps = weight.size(2);
  for (int64_t t = 0; t < u.size(1); ++t) {
    for (int64_t lag = 0; lag < std::min(taps, t + 1); ++lag)
      sum.select(1, t) += weight.select(2, taps - 1 - lag).select(1, 0) * u.select(1, t - lag);
  }
  return sum;
}

// Sums filter[t-s, c] u[s, c] over s <= t; filter [T, C].
inline at::Tensor LongSum(const at::Tensor& u, const at::Tensor& filter) {
  at::Tensor sum = at::zeros_like(u);
  for (int64_t t = 0; t < u.size(1); ++t)
    for (int64_t s = 0; s <= t; ++s) sum.select(1, t) += filter[t - s] * u.select(1, s);
  return sum;
}

}  // namespace halflife::test
