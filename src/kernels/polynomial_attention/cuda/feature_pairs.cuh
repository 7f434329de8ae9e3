// A feature as a product of two coordinates. Coordinate d is always 1, so (d, d) is 1, (a, d) is
// x_a, and (a, b) is x_a x_b.
#pragma once

#include "kernels/common/cuda/device.h"
#include "kernels/polynomial_attention/features.h"

namespace halflife::kernels::polynomial {

struct FeaturePair {
  uint8_t a, b;
};

// Fills pairs [F]. All threads of the block take part; a barrier must follow.
HL_DEVICE void FillPairs(const FeatureLayout& layout, FeaturePair* pairs) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const auto one = static_cast<uint8_t>(layout.dim);
  if (thread == 0 && layout.has0) pairs[0] = {one, one};
  for (int a = thread; a < layout.dim; a += threads) {
    if (layout.has1) pairs[layout.order1 + a] = {static_cast<uint8_t>(a), one};
    for (int b = a; layout.has2 && b < layout.dim; ++b)
      pairs[layout.Pair(a, b)] = {static_cast<uint8_t>(a), static_cast<uint8_t>(b)};
  }
}

struct FloatWeights {
  float order0, order1, square, pair;
};
HL_DEVICE FloatWeights WeightsOf(const FeatureWeights& weights) {
  return {static_cast<float>(weights.order0), static_cast<float>(weights.order1),
          static_cast<float>(weights.square), static_cast<float>(weights.pair)};
}
HL_DEVICE float WeightOf(const FloatWeights& weights, FeaturePair pair, int dim) {
  if (pair.a == dim) return weights.order0;
  if (pair.b == dim) return weights.order1;
  return pair.a == pair.b ? weights.square : weights.pair;
}

}  // namespace halflife::kernels::polynomial
