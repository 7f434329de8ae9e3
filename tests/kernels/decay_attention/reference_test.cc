// The oracle's gradients equal central differences.
#include "kernels/decay_attention/decay_attention_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace halflife::kernels {
namespace {

using Values = std::vector<double>;

struct Fixture {
  DecayReferenceProblem problem;
  Values out_weight, state_weight, norm_weight;

  // L = <out, w> + <final_state, w'> + <final_norm, w''>, so the output gradients are the weights.
  double Loss(const DecayReferenceProblem& p) const {
    DecayReferenceProblem forward = p;
    forward.dout.clear();
    const DecayReferenceResult r = DecayReference(forward);
    double loss = 0;
    for (size_t i = 0; i < r.out.size(); ++i) loss += r.out[i] * out_weight[i];
    for (size_t i = 0; i < r.final_state.size(); ++i) loss += r.final_state[i] * state_weight[i];
    for (size_t i = 0; i < r.final_norm.size(); ++i) loss += r.final_norm[i] * norm_weight[i];
    return loss;
  }
};

Fixture MakeFixture(bool normalised, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto draw = [&](size_t count, double low) {
    Values values(count);
    for (double& x : values) x = low > 0 ? low + std::abs(normal(random)) : normal(random);
    return values;
  };
  Fixture f;
  DecayReferenceProblem& p = f.problem;
  p.batch = 2;
  p.seq_len = 5;
  p.num_heads = 2;
  p.head_dim_k = 3;
  p.head_dim_v = 2;
  p.scale = 0.7;
  p.normalised = normalised;
  const double low = normalised ? 0.2 : 0;  // Keeps denominators away from 0.
  const size_t tokens = 2 * 5 * 2;
  p.q = draw(tokens * 3, low);
  p.k = draw(tokens * 3, low);
  p.v = draw(tokens * 2, 0);
  p.key_scale = draw(tokens, low);
  p.log_decay = draw(tokens * 3, 0);
  for (double& x : p.log_decay) x = -std::abs(x);
  p.starts = {0, 0, 1, 0, 0, 1, 0, 0, 0, 1};
  p.initial_state = draw(2 * 2 * 6, 0);
  if (normalised) p.initial_norm = draw(2 * 2 * 3, low);
  f.out_weight = p.dout = draw(tokens * 2, 0);
  f.state_weight = p.dfinal_state = draw(2 * 2 * 6, 0);
  f.norm_weight = p.dfinal_norm = draw(2 * 2 * 3, 0);
  return f;
}

TEST(DecayReference, GradientsAreCentralDifferences) {
  // The error of a difference is step^2 times a third derivative of order 10, plus 2e-16 of a loss
  // of order 10 divided by the step.
  constexpr double kStep = 1e-5, kTolerance = 2e-8;
  for (const bool normalised : {false, true}) {
    constexpr uint64_t kSeed = 3;
    const Fixture f = MakeFixture(normalised, kSeed);
    const DecayReferenceResult r = DecayReference(f.problem);
    const auto check = [&](const char* name, Values DecayReferenceProblem::*input,
                           const Values& grad) {
      for (size_t i = 0; i < grad.size(); ++i) {
        DecayReferenceProblem above = f.problem, below = f.problem;
        (above.*input)[i] += kStep;
        (below.*input)[i] -= kStep;
        const double want = (f.Loss(above) - f.Loss(below)) / (2 * kStep);
        EXPECT_NEAR(grad[i], want, kTolerance * std::max(1.0, std::abs(want)))
            << name << "[" << i << "], normalised " << normalised << ", seed " << kSeed;
      }
    };
    check("q", &DecayReferenceProblem::q, r.dq);
    check("k", &DecayReferenceProblem::k, r.dk);
    check("v", &DecayReferenceProblem::v, r.dv);
    check("log_decay", &DecayReferenceProblem::log_decay, r.dlog_decay);
    check("key_scale", &DecayReferenceProblem::key_scale, r.dkey_scale);
    check("initial_state", &DecayReferenceProblem::initial_state, r.dinitial_state);
    if (normalised) check("initial_norm", &DecayReferenceProblem::initial_norm, r.dinitial_norm);
  }
}

TEST(DecayReference, OneTokenByHand) {
  DecayReferenceProblem p;
  p.seq_len = 1;
  p.q = {3};
  p.k = {5};
  p.v = {7};
  p.log_decay = {std::log(0.5)};
  p.initial_state = {4};
  p.scale = 2;
  const DecayReferenceResult r = DecayReference(p);
  EXPECT_DOUBLE_EQ(r.final_state[0], 0.5 * 4 + 5 * 7);
  EXPECT_DOUBLE_EQ(r.out[0], 2 * 3 * 37.0);
}

}  // namespace
}  // namespace halflife::kernels
