// The oracle of the delta rule: golden values, gradients as central differences, and the message
// about an unsupported shape.
#include "kernels/delta_rule/delta_rule_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/error.h"
#include "kernels/delta_rule/golden.h"

namespace halflife::kernels {
namespace {

using test::Golden;
using Values = std::vector<double>;

void ExpectStartsWith(const char* name, const Golden& golden, const Values& got, size_t at,
                      const Values& want) {
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[at + i], want[i], 1e-9) << name << "[" << i << "], seed " << golden.seed;
}
double SumOfSquares(const Values& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return sum;
}

TEST(DeltaReference, EqualsGoldenValues) {
  for (const Golden& golden : test::GoldenColumns()) {
    const DeltaReferenceProblem problem = test::MakeGoldenProblem(golden);
    const DeltaReferenceResult r = DeltaReference(problem);
    ExpectStartsWith("out, head 0", golden, r.out, 6 * 4, golden.out_last[0]);
    ExpectStartsWith("out, head 1", golden, r.out, 6 * 4 + 2, golden.out_last[1]);
    EXPECT_NEAR(SumOfSquares(r.final_state), golden.state_squares, 1e-9) << golden.seed;
    ExpectStartsWith("final state", golden, r.final_state, 0, golden.state_row);
    ExpectStartsWith("dq", golden, r.dq, 0, golden.dq);
    ExpectStartsWith("dk", golden, r.dk, 0, golden.dk);
    ExpectStartsWith("dv", golden, r.dv, 0, golden.dv);
    ExpectStartsWith("dbeta", golden, r.dbeta, 0, golden.dbeta);
    ExpectStartsWith("dlog_decay", golden, r.dlog_decay, 0, golden.dlog_decay);
    ExpectStartsWith("dinitial state", golden, r.dinitial_state, 0, golden.dinitial);
  }
}

// The state of a segment without values that starts from the identity is its transition M.
TEST(DeltaReference, TransitionEqualsGoldenValues) {
  for (const Golden& golden : test::GoldenColumns()) {
    DeltaReferenceProblem problem = test::MakeGoldenProblem(golden);
    problem.head_dim_v = problem.head_dim_k;
    problem.v.assign(7 * 2 * 3, 0.0);
    problem.initial_state = {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1};
    problem.dout.clear();
    problem.dfinal_state.clear();
    const DeltaReferenceResult r = DeltaReference(problem);
    ExpectStartsWith("M", golden, r.final_state, 0, golden.transition);
    EXPECT_NEAR(SumOfSquares(r.final_state), golden.transition_squares, 1e-9) << golden.seed;
  }
}

DeltaReferenceProblem RandomProblem(DeltaDecay decay, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const auto draw = [&](size_t count) {
    Values values(count);
    for (double& x : values) x = normal(random);
    return values;
  };
  DeltaReferenceProblem p;
  p.batch = 2;
  p.seq_len = 5;
  p.num_heads = 2;
  p.num_value_heads = 4;
  p.head_dim_k = 3;
  p.head_dim_v = 2;
  p.decay = decay;
  p.scale = 0.7;
  const size_t tokens = 2 * 5 * 4;
  p.q = draw(2 * 5 * 2 * 3);
  p.k = draw(2 * 5 * 2 * 3);
  test::NormaliseRows(p.k, 3);
  p.v = draw(tokens * 2);
  if (decay != DeltaDecay::kNone)
    p.log_decay = draw(tokens * (decay == DeltaDecay::kPerToken ? 1 : 3));
  for (double& x : p.log_decay) x = -std::abs(x);
  p.beta.resize(tokens);
  for (double& x : p.beta) x = 2 * uniform(random);
  p.beta[3] = 0;
  p.starts = {0, 0, 1, 0, 0, 1, 0, 0, 0, 1};
  p.initial_state = draw(2 * 4 * 6);
  p.dout = draw(tokens * 2);
  p.dfinal_state = draw(2 * 4 * 6);
  return p;
}

TEST(DeltaReference, GradientsAreCentralDifferences) {
  // The error of a difference is step^2 times a third derivative of order 10, plus 2e-16 of a loss
  // of order 10 divided by the step.
  constexpr double kStep = 1e-5, kTolerance = 2e-8;
  constexpr uint64_t kSeed = 3;
  const auto loss = [](DeltaReferenceProblem p) {
    const Values dout = std::move(p.dout), dfinal = std::move(p.dfinal_state);
    p.dout.clear();
    p.dfinal_state.clear();
    const DeltaReferenceResult r = DeltaReference(p);
    double sum = 0;
    for (size_t i = 0; i < r.out.size(); ++i) sum += r.out[i] * dout[i];
    for (size_t i = 0; i < r.final_state.size(); ++i) sum += r.final_state[i] * dfinal[i];
    return sum;
  };
  for (const DeltaDecay decay :
       {DeltaDecay::kNone, DeltaDecay::kPerToken, DeltaDecay::kPerTokenChannel}) {
    const DeltaReferenceProblem problem = RandomProblem(decay, kSeed);
    const DeltaReferenceResult r = DeltaReference(problem);
    const auto check = [&](const char* name, Values DeltaReferenceProblem::*input,
                           const Values& grad) {
      ASSERT_EQ(grad.size(), (problem.*input).size()) << name;
      for (size_t i = 0; i < grad.size(); ++i) {
        DeltaReferenceProblem above = problem, below = problem;
        (above.*input)[i] += kStep;
        (below.*input)[i] -= kStep;
        const double want = (loss(above) - loss(below)) / (2 * kStep);
        EXPECT_NEAR(grad[i], want, kTolerance * std::max(1.0, std::abs(want)))
            << name << "[" << i << "], decay " << static_cast<int>(decay) << ", seed " << kSeed;
      }
    };
    check("q", &DeltaReferenceProblem::q, r.dq);
    check("k", &DeltaReferenceProblem::k, r.dk);
    check("v", &DeltaReferenceProblem::v, r.dv);
    check("log_decay", &DeltaReferenceProblem::log_decay, r.dlog_decay);
    check("beta", &DeltaReferenceProblem::beta, r.dbeta);
    check("initial_state", &DeltaReferenceProblem::initial_state, r.dinitial_state);
  }
}

TEST(DeltaRuleShape, ReportsEveryProblemAtOnce) {
  DeltaRuleArgs args;
  args.batch = 1;
  args.seq_len = 3;
  args.num_heads = 2;
  args.num_value_heads = 3;
  args.head_dim_k = 300;
  args.head_dim_v = 4;
  args.decay = DeltaDecay::kPerToken;
  args.v.dtype = DType::kBF16;
  try {
    CheckDeltaRuleShape(args);
    FAIL() << "an unsupported shape was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    const std::string message = error.message();
    for (const char* part :
         {"the delta rule cannot run this:",
          "num_value_heads is 3. Use a multiple of num_heads, which is 2.",
          "head_dim_k is 300. Use 1 to 256.", "log_decay is missing", "beta is missing",
          "q, k, v, out are fp32, fp32, bf16, fp32. Use one dtype for all."})
      EXPECT_NE(message.find(part), std::string::npos) << part << "\n" << message;
  }
}

TEST(DeltaRuleShape, AcceptsABatchWithoutTokens) {
  DeltaRuleArgs args;
  args.num_heads = 1;
  args.num_value_heads = 2;
  args.head_dim_k = args.head_dim_v = 4;
  args.decay = DeltaDecay::kPerTokenChannel;
  CheckDeltaRuleShape(args);
  EXPECT_EQ(DeltaRuleWorkspaceBytes(args), 0U);
  EXPECT_EQ(DeltaRuleCheckpointBytes(args), 0U);
}

}  // namespace
}  // namespace halflife::kernels
