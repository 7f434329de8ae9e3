// Polynomial attention as the sum of a pairwise part and a part from the state's features, on the
// CPU, equals the oracle and the chunked kernel.
#include "ops/polynomial_attention/polynomial_with_states.h"

#include <c10/core/GradMode.h>

#include "kernels/polynomial_attention/problem.h"

namespace halflife::kernels {
namespace {

using namespace test;

class PolynomialWithStatesTest : public testing::TestWithParam<Kernel> {
 protected:
  // Returns rows with document starts inside, at the first token, at the last token, and with none.
  std::vector<Problem> Problems() const {
    std::vector<Problem> problems;
    for (const bool states : {false, true})
      for (const std::vector<int32_t>& starts :
           {std::vector<int32_t>{}, std::vector<int32_t>{0, 7, 31, 69, 70}})
        for (const int64_t dim_v : {7, 10})
          problems.push_back(MakeProblem({.batch = 2,
                                          .seq_len = 70,
                                          .dim = 5,
                                          .dim_v = dim_v,
                                          .kernel = GetParam(),
                                          .states = states,
                                          .document_starts = starts,
                                          .norm_eps = dim_v == 7 ? 0.5 : 1e-12},
                                         4));
    return problems;
  }
};

TEST_P(PolynomialWithStatesTest, AgreesWithTheOracle) {
  for (const Problem& p : Problems()) {
    SCOPED_TRACE(testing::Message() << p.shape.states << " " << p.shape.document_starts.size());
    const Answer want = Oracle(p);
    ExpectClose(RunKernel(p, {.dtype = at::kDouble, .attend = ops::AttendWithStates}), want, 1e-11);
    // Features cancel if q and the first keys are almost orthogonal.
    ExpectClose(RunKernel(p, {.dtype = at::kFloat, .attend = ops::AttendWithStates}), want, 1e-3);
  }
}

// Rows of more than one block of features.
TEST_P(PolynomialWithStatesTest, LongRowsAgreeWithTheChunkedKernel) {
  const Problem p = MakeProblem({.seq_len = 4100,
                                 .heads = 1,
                                 .dim = 3,
                                 .dim_v = 2,
                                 .kernel = GetParam(),
                                 .states = true,
                                 .document_starts = {2500}},
                                9);
  const RunConfig by_features = {.dtype = at::kDouble, .attend = ops::AttendWithStates};
  ExpectClose(RunKernel(p, by_features), RunKernel(p, {.dtype = at::kDouble}), 1e-10);
}

// In bf16 the pairwise part is rounded, the state is not.
TEST_P(PolynomialWithStatesTest, AgreesWithTheOracleInBf16) {
  const Problem p =
      MakeProblem({.seq_len = 90, .kernel = GetParam(), .states = true}, 5, at::kBFloat16);
  const Answer got = RunKernel(p, {.dtype = at::kBFloat16, .attend = ops::AttendWithStates});
  const Answer want = Oracle(p);
  ExpectClose(got, want, 2e-2);
  EXPECT_LE(RelativeError(got.at("final_state"), want.at("final_state")), 1e-5);
}

// The segments that sequence parallelism exchanges equal those of the chunked kernel.
TEST_P(PolynomialWithStatesTest, PiecesAreTheChunkedKernels) {
  for (const Problem& p : Problems()) {
    ops::PolynomialAttentionConfig config = p.Config();
    const ops::PolynomialAttentionInputs alone = {
        .q = p.q, .k = p.k, .v = p.v, .chunks = ChunksOf(p.shape, 32)};
    const ops::PolynomialState want = ops::Summarise(alone, config),
                               got = ops::SummariseByFeatures(alone, config);
    EXPECT_TRUE(Close(got.kv, want.kv, 1e-12));
    if (p.shape.kernel.normalise) {
      EXPECT_TRUE(Close(got.norm, want.norm, 1e-12));
    }
    ops::PolynomialAttentionInputs in = alone;
    in.initial_state = p.initial;
    EXPECT_TRUE(
        // The summary does not include earlier tokens.
        BitEqual(ops::Summarise(in, config).kv, want.kv));
    in.q = p.q.clone().requires_grad_();  // Divisors are returned only for backward.
    const ops::PolynomialAttentionOutput chunked = ops::PolynomialAttention(in, config),
                                         output = ops::AttendWithStates(in, config);
    EXPECT_EQ(output.norm_denom.defined(), p.shape.kernel.normalise);
    if (output.norm_denom.defined()) {
      EXPECT_TRUE(Close(output.norm_denom, chunked.norm_denom, 1e-12));
    }
    const c10::AutoGradMode no_grad(false);
    in.q = p.q;
    const ops::PolynomialState before = ops::BackwardSummarise(in, config, chunked, p.dout),
                               mine = ops::BackwardSummariseByFeatures(in, config, output, p.dout);
    EXPECT_TRUE(Close(mine.kv, before.kv, 1e-11));
    if (p.shape.kernel.normalise) {
      EXPECT_TRUE(Close(mine.norm, before.norm, 1e-11));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PolynomialWithStatesTest, testing::ValuesIn(kKernels));

// A state with one half missing equals a state with this half zero.
TEST(PolynomialWithStates, AStateWithOnlyValues) {
  Problem p = MakeProblem({.dim = 4, .kernel = kBased, .states = true}, 6);
  ops::PolynomialAttentionInputs in = {
      .q = p.q, .k = p.k, .v = p.v, .chunks = ChunksOf(p.shape, 32), .initial_state = p.initial};
  in.initial_state.norm = at::zeros(p.initial.norm.sizes(), at::kDouble);
  const at::Tensor want = ops::AttendWithStates(in, p.Config()).out;
  in.initial_state.norm = at::Tensor();
  EXPECT_TRUE(BitEqual(ops::AttendWithStates(in, p.Config()).out, want));
}

// A NaN before a document start, or in the state, does not cross the start.
TEST(PolynomialWithStates, DocumentsAreIndependent) {
  Problem p = MakeProblem(
      {.seq_len = 90, .dim = 4, .kernel = kRebased, .states = true, .document_starts = {70}}, 7);
  const auto run = [&] {
    return ops::AttendWithStates(
        {.q = p.q, .k = p.k, .v = p.v, .chunks = ChunksOf(p.shape, 32), .initial_state = p.initial},
        p.Config());
  };
  const ops::PolynomialAttentionOutput before = run();
  p.initial.kv = p.initial.kv / 0.0, p.initial.norm = p.initial.norm / 0.0;
  p.k.select(1, 69).div_(0.0), p.v.select(1, 3).div_(0.0);
  const ops::PolynomialAttentionOutput after = run();
  EXPECT_FALSE(after.out.select(1, 69).isfinite().all().item<bool>());
  EXPECT_TRUE(BitEqual(after.out.narrow(1, 70, 20), before.out.narrow(1, 70, 20)));
  EXPECT_TRUE(BitEqual(after.final_state.kv, before.final_state.kv));
  EXPECT_TRUE(BitEqual(after.final_state.norm, before.final_state.norm));
}

// Gradients do not cross it either: from a query to the state, or from the state to a query.
TEST(PolynomialWithStates, GradientsStayInTheirDocument) {
  const Problem p = MakeProblem(
      {.seq_len = 90, .dim = 4, .kernel = kRebased, .states = true, .document_starts = {70}}, 7);
  const RunConfig run = {.dtype = at::kDouble, .attend = ops::AttendWithStates};
  const Answer before = RunKernel(p, run);
  Problem state = p, query = p;
  state.initial.kv = p.initial.kv / 0.0, state.initial.norm = p.initial.norm / 0.0;
  EXPECT_TRUE(BitEqual(RunKernel(state, run).at("dq").narrow(1, 70, 20),
                       before.at("dq").narrow(1, 70, 20)));
  query.q = p.q.clone();
  query.q.select(1, 80).div_(0.0);
  const Answer heard = RunKernel(query, run);
  EXPECT_TRUE(BitEqual(heard.at("dinitial_state"), before.at("dinitial_state")));
  EXPECT_TRUE(BitEqual(heard.at("dinitial_norm"), before.at("dinitial_norm")));
}

// The divisors are kept only for backward.
TEST(PolynomialWithStates, DivisorsAreOfADifferentiatedCall) {
  const Problem p = MakeProblem({.kernel = kBased}, 7);
  ops::PolynomialAttentionInputs in = {
      .q = p.q, .k = p.k, .v = p.v, .chunks = ChunksOf(p.shape, 32)};
  EXPECT_FALSE(ops::AttendWithStates(in, p.Config()).norm_denom.defined());
  in.k = p.k.clone().requires_grad_();
  EXPECT_TRUE(ops::AttendWithStates(in, p.Config()).norm_denom.defined());
}

TEST(PolynomialWithStates, SaysWhyNot) {
  const auto why_not = [](const ProblemShape& shape) {
    const Problem p = MakeProblem(shape, 8);
    return ops::WhyNotWithStates({.q = p.q, .k = p.k, .v = p.v, .chunks = ChunksOf(shape, 32)},
                                 p.shape.kernel.normalise);
  };
  EXPECT_EQ(why_not({}), "");
  EXPECT_EQ(why_not({.seq_len = 3, .dim = 40}), "heads of 40 channels");
  EXPECT_EQ(why_not({.seq_len = 3, .dim_v = 256}), "values of 256 channels");
  EXPECT_EQ(why_not({.seq_len = 0}), "no tokens");
}

}  // namespace
}  // namespace halflife::kernels
