// The features of a polynomial similarity, kappa(scale q . k) = sum of w_f psi_f(q) psi_f(k):
//
//   order   psi             w            width
//     0     1               a0           1
//     1     x_a             a1 scale     d
//     2     x_a x_a         a2 scale^2   d (d + 1) / 2, as (0,0), (0,1) .. (0,d-1), (1,1) ..
//           x_a x_b, a < b  2 a2 scale^2
//
// "Packed" means that x_a x_b and x_b x_a are one feature. Orders without a weight are left out.
// All weights are applied to q, so that a state holds plain sums of products of k. C++17, because
// CUDA sources include it.
//
//   const FeatureLayout layout(16, {1, 1, 0.5});   // Based: layout.count is 153
#pragma once

#include <cstdint>

#include "kernels/common/host_device.h"

namespace halflife::kernels {

constexpr int kMaxPolynomialDim = 64;      // d
constexpr int kMaxPolynomialValues = 256;  // V

struct PolynomialWeights {
  double a0 = 0, a1 = 0, a2 = 0;
};

struct FeatureLayout {
  int dim;             // d
  int order1, order2;  // index of the first feature of each order
  int count;           // F
  bool has0, has1, has2;

  HL_EVERYWHERE constexpr FeatureLayout(int head_dim, const PolynomialWeights& weights)
      : dim(head_dim),
        order1(weights.a0 != 0 ? 1 : 0),
        order2(order1 + (weights.a1 != 0 ? head_dim : 0)),
        count(order2 + (weights.a2 != 0 ? head_dim * (head_dim + 1) / 2 : 0)),
        has0(weights.a0 != 0),
        has1(weights.a1 != 0),
        has2(weights.a2 != 0) {}

  // Returns the index of x_a x_b, a <= b.
  HL_EVERYWHERE constexpr int Pair(int a, int b) const {
    return order2 + a * dim - a * (a - 1) / 2 + (b - a);
  }
};

// w of each kind of feature; all are 1 on the side of k.
struct FeatureWeights {
  double order0 = 1, order1 = 1, square = 1, pair = 1;
};
HL_EVERYWHERE constexpr FeatureWeights QueryWeights(const PolynomialWeights& weights,
                                                    double scale) {
  return {weights.a0, weights.a1 * scale, weights.a2 * scale * scale,
          2 * weights.a2 * scale * scale};
}

}  // namespace halflife::kernels
