// A denominator with its own operands.
#include "ops/decay_attention/decay_attention_internal.h"

#include <ATen/ops/zeros.h>

#include "ops/decay_attention/tensor_problem.h"
#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Close;
using test::DecayProblem;
using test::MakeProblem;
using test::Uniform;

DecayProblem Problem(bool initial_state) {
  return MakeProblem({.seq_len = 70,
                      .dim_k = 8,
                      .dim_v = 6,
                      .kind = kernels::DecayKind::kPerHeadChannel,
                      .documents = true,
                      .initial_state = initial_state,
                      .normalised = true},
                     51, at::kDouble);
}

TEST(OwnDenominator, TheSameOperandsGiveTheNormaliser) {
  DecayProblem problem = Problem(true);
  const auto want = DecayAttention(problem.inputs, problem.config);
  problem.inputs.norm_q = problem.inputs.q, problem.inputs.norm_k = problem.inputs.k;
  const auto got = DecayAttention(problem.inputs, problem.config);
  EXPECT_TRUE(Close(got.out, want.out, 1e-12));
  EXPECT_TRUE(Close(got.final_state.kv, want.final_state.kv, 1e-12));
  EXPECT_TRUE(Close(got.final_state.norm, want.final_state.norm, 1e-12));
}

TEST(OwnDenominator, GradientsAreFiniteDifferences) {
  const DecayProblem problem = Problem(false);
  const DecayAttentionInputs& in = problem.inputs;
  const at::Tensor norm_q = Uniform(in.q.sizes().vec(), 1) + 0.1,
                   norm_k = Uniform(in.k.sizes().vec(), 2) + 0.1;
  test::ExpectFiniteDifferences(
      [&](const std::vector<at::Tensor>& x) {
        DecayAttentionInputs inputs = in;
        inputs.q = x[0], inputs.k = x[1], inputs.norm_q = x[2], inputs.norm_k = x[3];
        return (DecayAttention(inputs, problem.config).out * problem.dout).sum();
      },
      {in.q, in.k, norm_q, norm_k}, 1e-6, /*stride=*/37);
}

TEST(OwnDenominator, StepsAreTheWhole) {
  DecayProblem problem = Problem(false);
  DecayAttentionInputs& in = problem.inputs;
  in.chunks = nullptr;
  in.norm_q = Uniform(in.q.sizes().vec(), 1) + 0.1,
  in.norm_k = Uniform(in.k.sizes().vec(), 2) + 0.1;
  const auto whole = DecayAttention(in, problem.config);
  DecayState state = {.kv = at::zeros({2, 2, 8, 6}, at::kDouble),
                      .norm = at::zeros({2, 2, 8}, at::kDouble)};
  for (int64_t t = 0; t < 70; ++t) {
    const at::Tensor out = DecayAttentionStep(test::TokenAt(in, t), problem.config, state);
    ASSERT_TRUE(Close(out, whole.out.select(1, t), 1e-12)) << "token " << t;
  }
  EXPECT_TRUE(Close(state.norm, whole.final_state.norm, 1e-12));
}

TEST(OwnDenominator, SaysWhatDoesNotFit) {
  DecayProblem problem = Problem(false);
  problem.inputs.norm_q = problem.inputs.q;
  EXPECT_HL_ERROR(DecayAttention(problem.inputs, problem.config), ExitCode::kInternal,
                  "norm_k undefined", "Use the shapes of q");
  problem.inputs.norm_k = problem.inputs.k;
  problem.config.norm = kernels::NormKind::kNone;
  EXPECT_HL_ERROR(DecayAttention(problem.inputs, problem.config), ExitCode::kInternal,
                  "norm_q without the normalizer");
}

}  // namespace
}  // namespace halflife::ops
