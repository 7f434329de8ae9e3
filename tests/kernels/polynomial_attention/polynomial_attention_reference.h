// The reference: the double sum over pairs of tokens in fp64, plain loops over plain memory, with
// every gradient by differentiating that sum; states as sums of packed features. Slow on purpose;
// only tests and benchmarks may call it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/polynomial_attention/features.h"

namespace halflife::kernels {

struct PolynomialReferenceProblem {
  int64_t batch = 1, seq_len = 0, num_heads = 1, head_dim = 1, head_dim_v = 1;
  double scale = 1;
  PolynomialWeights weights;
  bool normalise = true;
  double norm_eps = 1e-12;
  std::vector<double> q, k;           // [B, T, H, d]
  std::vector<double> v;              // [B, T, H, V]
  std::vector<uint8_t> starts;        // [B, T] or empty
  std::vector<double> initial_state;  // [B, H, F, V] or empty
  std::vector<double> initial_norm;   // [B, H, F] or empty
  std::vector<double> dout;           // [B, T, H, V] or empty: forward only
  std::vector<double> dfinal_state;   // [B, H, F, V] or empty
  std::vector<double> dfinal_norm;    // [B, H, F] or empty
};
struct PolynomialReferenceResult {
  std::vector<double> out, norm;  // norm [B, T, H]: z, without norm_eps
  std::vector<double> final_state, final_norm;
  // Empty if only the forward was requested.
  std::vector<double> dq, dk, dv, dinitial_state, dinitial_norm;
};
PolynomialReferenceResult PolynomialReference(const PolynomialReferenceProblem& problem);

// Return psi(x) [F] for x [d], and dx [d] for dpsi [F].
std::vector<double> ReferenceFeatures(const FeatureLayout& layout, const double* x);
std::vector<double> ReferenceFeaturesBackward(const FeatureLayout& layout, const double* x,
                                              const double* dpsi);
// Returns w [F].
std::vector<double> ReferenceWeights(const FeatureLayout& layout, const FeatureWeights& weights);

}  // namespace halflife::kernels
