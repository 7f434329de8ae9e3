// The oracle of polynomial attention: its features represent the kernel, and its gradients equal
// finite differences.
#include "kernels/polynomial_attention/polynomial_attention_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace halflife::kernels {
namespace {

std::vector<double> Draw(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(count);
  for (double& x : values) x = normal(random);
  return values;
}

// Property 3 of the two papers' kernels: widths, and the dot product of features.
TEST(PolynomialFeatures, HaveThePapersPackedWidths) {
  EXPECT_EQ(FeatureLayout(16, {1, 1, 0.5}).count, 153);
  EXPECT_EQ(FeatureLayout(16, {0, 0, 1}).count, 136);
  EXPECT_EQ(FeatureLayout(16, {0, 1, 0}).count, 16);
  EXPECT_EQ(FeatureLayout(16, {0.5, 1, 0.5}).Pair(15, 15), 152);
  constexpr FeatureLayout full(16, {1, 1, 0.5});  // Unpacked: 273 and 256.
  EXPECT_EQ(full.count + 16 * 15 / 2, 273);
}

TEST(PolynomialFeatures, GiveTheKernelAsTheirDotProduct) {
  for (const PolynomialWeights& weights :
       {PolynomialWeights{1, 1, 0.5}, {0, 0, 1}, {0.5, 1, 0.5}, {0, 1, 0}, {2, 0, -0.25}}) {
    for (const int dim : {1, 2, 16, 24}) {
      const double scale = 1 / std::sqrt(dim);
      const FeatureLayout layout(dim, weights);
      const std::vector<double> q = Draw(dim, 1), k = Draw(dim, 2);
      const auto psi_q = ReferenceFeatures(layout, q.data()),
                 psi_k = ReferenceFeatures(layout, k.data());
      const auto w = ReferenceWeights(layout, QueryWeights(weights, scale));
      double s = 0, dot = 0;
      for (int a = 0; a < dim; ++a) s += scale * q[a] * k[a];
      for (int f = 0; f < layout.count; ++f) dot += w[f] * psi_q[f] * psi_k[f];
      EXPECT_NEAR(dot, weights.a0 + weights.a1 * s + weights.a2 * s * s, 1e-12);
    }
  }
}

// Gradients of every input, through the outputs and both final states, with a document start inside
// the row. Central differences with step 1e-5 have an error of 1e-10 of third derivatives and 1e-11
// of rounding.
TEST(PolynomialReference, GradientsAreFiniteDifferences) {
  const auto loss = [](const PolynomialReferenceProblem& p) {
    PolynomialReferenceProblem forward = p;
    forward.dout.clear();
    const PolynomialReferenceResult r = PolynomialReference(forward);
    double sum = 0;
    for (size_t i = 0; i < r.out.size(); ++i) sum += r.out[i] * p.dout[i];
    for (size_t i = 0; i < r.final_state.size(); ++i) sum += r.final_state[i] * p.dfinal_state[i];
    for (size_t i = 0; i < r.final_norm.size(); ++i) sum += r.final_norm[i] * p.dfinal_norm[i];
    return sum;
  };
  for (const bool cut : {false, true}) {
    PolynomialReferenceProblem p = {.seq_len = 5, .num_heads = 2, .head_dim = 3, .head_dim_v = 2};
    p.scale = 0.6;
    p.weights = {1, 1, 0.5};
    p.norm_eps = 0.3;  // Large enough to matter in the gradient.
    const size_t norms = 2 * FeatureLayout(3, p.weights).count;
    p.q = Draw(30, 1), p.k = Draw(30, 2), p.v = Draw(20, 3), p.dout = Draw(20, 4);
    p.initial_state = Draw(norms * 2, 5), p.dfinal_state = Draw(norms * 2, 7);
    p.initial_norm.assign(norms, 0.0), p.dfinal_norm = Draw(norms, 8);
    for (size_t f = 0; f < norms; f += norms / 2) p.initial_norm[f] = 4;  // Keeps z positive.
    p.starts = {0, 0, static_cast<uint8_t>(cut), 0, 0};
    const PolynomialReferenceResult r = PolynomialReference(p);
    const auto check = [&](std::vector<double>& x, const std::vector<double>& gradient) {
      constexpr double kStep = 1e-5;
      for (size_t i = 0; i < x.size(); ++i) {
        const double saved = x[i];
        x[i] = saved + kStep;
        const double above = loss(p);
        x[i] = saved - kStep;
        const double below = loss(p);
        x[i] = saved;
        EXPECT_NEAR(gradient[i], (above - below) / (2 * kStep),
                    1e-7 * std::max(1.0, std::abs(gradient[i])));
      }
    };
    check(p.q, r.dq), check(p.k, r.dk), check(p.v, r.dv);
    check(p.initial_state, r.dinitial_state), check(p.initial_norm, r.dinitial_norm);
  }
}

}  // namespace
}  // namespace halflife::kernels
