// Every form of polynomial attention on the CPU equals the oracle: chunks of any size, pairwise,
// and token by token, with states and documents, in fp32, bf16 and fp64.
#include "ops/gradient_check.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include "kernels/polynomial_attention/problem.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using namespace test;

class PolynomialFormsTest : public testing::TestWithParam<Kernel> {};

struct Extent {
  int64_t seq_len, dim, dim_v;
};
// Lengths around tiles and chunks, widths around vectors.
constexpr Extent kExtents[] = {{1, 16, 64},  {2, 8, 1},    {15, 16, 2},  {16, 24, 5},
                               {17, 16, 10}, {63, 8, 21},  {64, 64, 42}, {65, 16, 64},
                               {127, 24, 5}, {300, 8, 42}, {33, 3, 7},   {2048, 8, 5}};

// Property 1. fp64: 2^-53 times sums of a few thousand terms that cancel to a hundredth.
TEST_P(PolynomialFormsTest, AgreeWithTheOracleInDouble) {
  for (const Extent& e : kExtents) {
    if (e.seq_len > 127) continue;  // Longer rows are tested only in fp32, for its rounding.
    SCOPED_TRACE(testing::Message() << "T " << e.seq_len << " d " << e.dim << " V " << e.dim_v);
    const Problem p = MakeProblem(
        {.seq_len = e.seq_len, .dim = e.dim, .dim_v = e.dim_v, .kernel = GetParam()}, 100);
    const Answer want = Oracle(p);
    for (const int64_t chunk : {1, 16, 32, 64})
      ExpectClose(RunKernel(p, {.dtype = at::kDouble, .chunk_size = chunk}), want, 1e-10);
    for (const int64_t chunk : {16, 32, 64})
      ExpectClose(
          RunKernel(
              p, {.dtype = at::kDouble, .chunk_size = chunk, .form = PolynomialForm::kQuadratic}),
          want, 1e-10);
  }
}

TEST_P(PolynomialFormsTest, AgreeWithTheOracleInFloat) {
  for (const Extent& e : kExtents) {
    SCOPED_TRACE(testing::Message() << "T " << e.seq_len << " d " << e.dim << " V " << e.dim_v);
    const Problem p = MakeProblem(
        {.seq_len = e.seq_len, .heads = 1, .dim = e.dim, .dim_v = e.dim_v, .kernel = GetParam()},
        101);
    const Answer want = Oracle(p);
    for (const int64_t chunk : {1, 16, 64}) {
      if (chunk == 1 && e.seq_len > 300) continue;
      SCOPED_TRACE(testing::Message() << "chunks of " << chunk);
      ExpectClose(RunKernel(p, {.chunk_size = chunk}), want, 1e-5);
    }
    ExpectClose(RunKernel(p, {.form = PolynomialForm::kQuadratic}), want, 1e-5);
  }
}

// bf16 storage with fp32 arithmetic: stored values are rounded once, by up to 2^-9 of themselves.
TEST_P(PolynomialFormsTest, AgreeWithTheOracleInBf16) {
  for (const Extent& e : kExtents) {
    if (e.seq_len > 127) continue;
    SCOPED_TRACE(testing::Message() << "T " << e.seq_len << " d " << e.dim << " V " << e.dim_v);
    const Problem p =
        MakeProblem({.seq_len = e.seq_len, .dim = e.dim, .dim_v = e.dim_v, .kernel = GetParam()},
                    102, at::kBFloat16);
    const Answer want = Oracle(p);
    ExpectClose(RunKernel(p, {.dtype = at::kBFloat16}), want, 2e-2);
    ExpectClose(RunKernel(p, {.dtype = at::kBFloat16, .form = PolynomialForm::kQuadratic}), want,
                2e-2);
  }
}

// Property 1 with initial and final states, and documents inside rows.
TEST_P(PolynomialFormsTest, StatesAndDocumentsAgreeWithTheOracle) {
  for (const bool states : {false, true})
    for (const std::vector<int32_t>& starts :
         {std::vector<int32_t>{}, {0, 90}, {5, 37, 38, 64, 90, 100, 179}}) {
      SCOPED_TRACE(testing::Message() << starts.size() << " documents, states " << states);
      const Problem p = MakeProblem({.batch = 2,
                                     .seq_len = 90,
                                     .dim = 8,
                                     .dim_v = 21,
                                     .kernel = GetParam(),
                                     .states = states,
                                     .document_starts = starts},
                                    103);
      const Answer want = Oracle(p);
      for (const int64_t chunk : {16, 32, 64})
        ExpectClose(RunKernel(p, {.dtype = at::kDouble, .chunk_size = chunk}), want, 1e-10);
      if (!states)
        ExpectClose(RunKernel(p, {.dtype = at::kDouble, .form = PolynomialForm::kQuadratic}), want,
                    1e-10);
    }
}

// Properties 1 and 2: a prefill of any length followed by single tokens equals the whole, and the
// state does not depend on the chunks.
TEST_P(PolynomialFormsTest, StepsFromAnyPrefillAreTheWhole) {
  const Problem p =
      MakeProblem({.batch = 2, .seq_len = 70, .dim = 8, .dim_v = 5, .kernel = GetParam()}, 104);
  const at::Tensor want = Oracle(p).at("out");
  ops::PolynomialAttentionConfig config = p.Config();
  config.want_final_state = true;
  for (const int64_t prefill : {0, 1, 32, 69}) {
    ops::PolynomialState state;
    for (const int64_t chunk : {7, 32, 64}) {
      const auto part = [&](const at::Tensor& x) { return x.narrow(1, 0, prefill); };
      const ops::PolynomialState left =
          ops::PolynomialAttention(
              {.q = part(p.q),
               .k = part(p.k),
               .v = part(p.v),
               .chunks = ops::MakeSequenceChunks(
                   {.batch = 2, .seq_len = prefill, .chunk_size = chunk}, at::kCPU),
               .initial_state = {}},
              config)
              .final_state;
      if (state.kv.defined()) {
        EXPECT_TRUE(Close(left.kv, state.kv, 1e-12));
      }
      state = left;
    }
    for (int64_t t = prefill; t < p.shape.seq_len; ++t) {
      const at::Tensor out = ops::PolynomialAttentionStep(
          {.q = p.q.select(1, t), .k = p.k.select(1, t), .v = p.v.select(1, t)}, config, state);
      EXPECT_TRUE(Close(out, want.select(1, t), 1e-9)) << "prefill " << prefill << ", token " << t;
    }
  }
}

// The kernel's part of property 14: with an eps that matters, and through both states.
TEST_P(PolynomialFormsTest, GradientsAreFiniteDifferences) {
  const Problem p = MakeProblem(
      {.seq_len = 9, .dim = 3, .dim_v = 2, .kernel = GetParam(), .states = true, .norm_eps = 0.25},
      105);
  std::vector<at::Tensor> leaves = {p.q, p.k, p.v, p.initial.kv};
  if (p.initial.norm.defined()) leaves.push_back(p.initial.norm);
  halflife::test::ExpectFiniteDifferences(
      [&](const std::vector<at::Tensor>& x) {
        const auto [out, final_state, divisors] = ops::PolynomialAttention(
            {.q = x[0],
             .k = x[1],
             .v = x[2],
             .chunks = ChunksOf(p.shape, 4),
             .initial_state = {.kv = x[3], .norm = x.size() > 4 ? x[4] : at::Tensor()}},
            p.Config());
        at::Tensor loss = (out * p.dout).sum() + (final_state.kv * p.dfinal.kv).sum();
        if (final_state.norm.defined()) loss = loss + (final_state.norm * p.dfinal.norm).sum();
        return loss;
      },
      leaves);
}

void ExpectThreadsChangeNoBit(const Problem& p) {
  halflife::test::ExpectSameBitsWithThreads([&] {
    std::vector<at::Tensor> tensors;
    for (const auto& [name, tensor] : RunKernel(p, {})) tensors.push_back(tensor);
    return tensors;
  });
}

TEST_P(PolynomialFormsTest, ThreadsChangeNoBit) {
  const Problem p =
      MakeProblem({.batch = 3, .seq_len = 100, .kernel = GetParam(), .states = true}, 106);
  ExpectThreadsChangeNoBit(p);
}

// A row of several blocks: one thread alternates between 16 heads, and five threads finish their
// heads one after the other. Documents start within a block and at its first token.
TEST_P(PolynomialFormsTest, HeadsSideBySideChangeNoBit) {
  PolynomialAttentionArgs args;
  args.batch = 1, args.seq_len = 5000, args.num_heads = 16, args.head_dim = 8, args.head_dim_v = 21;
  args.weights = GetParam().weights;
  const PolynomialAttentionPlan plan = MakePlan(args, {.form = PolynomialForm::kChunked});
  const int block_tokens = plan.block_chunks * plan.chunk_size;
  ASSERT_LT(2 * block_tokens, args.seq_len);
  const Problem p = MakeProblem({.seq_len = args.seq_len,
                                 .heads = args.num_heads,
                                 .dim = args.head_dim,
                                 .dim_v = args.head_dim_v,
                                 .kernel = GetParam(),
                                 .states = true,
                                 .document_starts = {block_tokens, 3001}},
                                108);
  ExpectThreadsChangeNoBit(p);
}

INSTANTIATE_TEST_SUITE_P(Kernels, PolynomialFormsTest, testing::ValuesIn(kKernels));

// Rows that are not contiguous, as slices of one projection.
TEST(PolynomialForms, TakeStridedRows) {
  const Problem p = MakeProblem({.batch = 2, .seq_len = 40}, 107);
  Problem apart = p;
  const at::Tensor all = at::stack({p.q, p.k}, 3).to(at::kFloat);  // [B, T, H, 2, d]
  const auto run = [&](const at::Tensor& q, const at::Tensor& k) {
    return ops::PolynomialAttention({.q = q, .k = k, .v = p.v.to(at::kFloat)}, p.Config()).out;
  };
  EXPECT_TRUE(BitEqual(run(all.select(3, 0), all.select(3, 1)),
                       run(p.q.to(at::kFloat), p.k.to(at::kFloat))));
}

TEST(PolynomialForms, PlanTakesTheCheaperForm) {
  const auto quadratic = [](int seq_len, int dim_v, bool state) {
    float initial = 0;
    PolynomialAttentionArgs args;
    args.batch = args.num_heads = 1;
    args.seq_len = seq_len;
    args.head_dim = 16;
    args.head_dim_v = dim_v;
    args.weights = {0, 0, 1};
    if (state) args.initial_state = &initial;
    return MakePlan(args).quadratic;
  };
  EXPECT_TRUE(quadratic(128, 5, false));
  EXPECT_TRUE(quadratic(128, 64, false));
  EXPECT_FALSE(quadratic(128, 64, true));
  EXPECT_FALSE(quadratic(2048, 5, false));
  EXPECT_FALSE(quadratic(2048, 64, false));
}

// A state with only the sum of keys, and zero sums of values, still contributes to the divisor.
TEST(PolynomialForms, AStateWithOnlyTheNormaliserIsRead) {
  const at::Tensor q = Normal({1, 20, 1, 8}, 1, at::kFloat),
                   v = Normal({1, 20, 1, 5}, 2, at::kFloat);
  ops::PolynomialAttentionConfig config = {.weights = {1, 1, 0.5}, .normalise = true};
  config.want_final_state = false;
  const ops::PolynomialAttentionInputs inputs = {
      .q = q, .k = q, .v = v, .initial_state = {.kv = {}, .norm = 100 * at::ones({1, 1, 45})}};
  const at::Tensor by_shape = ops::PolynomialAttention(inputs, config).out;
  config.form = PolynomialForm::kChunked;
  const at::Tensor chunked = ops::PolynomialAttention(inputs, config).out;
  EXPECT_LE((by_shape - chunked).abs().max().item<float>(), 1e-6f);
  EXPECT_GT(chunked.abs().max().item<float>(), 0.0f);
}

TEST(PolynomialForms, SayWhatDoesNotFit) {
  const at::Tensor q = Normal({1, 4, 2, 8}, 1, at::kFloat), v = Normal({1, 4, 2, 5}, 2, at::kFloat);
  const ops::PolynomialAttentionConfig config = {.weights = {1, 1, 0.5}};
  EXPECT_HL_ERROR((ops::PolynomialAttention({.q = q, .k = q, .v = v.narrow(1, 0, 3)}, config)),
                  ExitCode::kInternal, "q and k [B, T, H, d], v [B, T, H, V].");
  EXPECT_HL_ERROR((ops::PolynomialAttention({.q = q, .k = q, .v = v}, {})), ExitCode::kUsage,
                  "weights are 0, 0, 0");
  EXPECT_HL_ERROR(
      (ops::PolynomialAttention({.q = q, .k = q, .v = v},
                                {.weights = {1, 1, 0.5}, .form = PolynomialForm::kQuadratic})),
      ExitCode::kInternal, "the quadratic form reads and writes no state");
  const at::Tensor wide = Normal({1, 4, 2, 65}, 1, at::kFloat);
  EXPECT_HL_ERROR((ops::PolynomialAttention({.q = wide, .k = wide, .v = v}, config)),
                  ExitCode::kUsage, "head_dim 65 is outside 1 .. 64");
  ops::PolynomialState state = {.kv = at::zeros({1, 2, 45, 4}), .norm = at::zeros({1, 2, 45})};
  const auto token = [](const at::Tensor& x) { return x.select(1, 0); };
  EXPECT_HL_ERROR(
      (ops::PolynomialAttentionStep({.q = token(q), .k = token(q), .v = token(v)}, config, state)),
      ExitCode::kInternal, "[1, 2, 45, 5]");
}

}  // namespace
}  // namespace halflife::kernels
