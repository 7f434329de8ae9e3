// The tensor and autograd interface of decay attention equals the token-by-token oracle.
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <tuple>

#include "ops/decay_attention/tensor_problem.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using test::Close;
using test::DecayProblem;
using test::DecayStrength;
using test::MakeProblem;
using test::Normal;
using test::Oracle;
using test::ProblemShape;
using test::Uniform;

constexpr DecayKind kKinds[] = {DecayKind::kPerHead, DecayKind::kPerToken,
                                DecayKind::kPerTokenChannel};
constexpr DecayStrength kStrengths[] = {DecayStrength::kMild, DecayStrength::kNearOne,
                                        DecayStrength::kStrong, DecayStrength::kResets};

// fp64: sums of at most 200 terms of order 1, nested a few times. fp32, relative to the largest
// value: 6e-8 times sqrt(200) roundings, times the nesting of sums (state, scores, gradient).
double Tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-12 : 5e-6; }

void ExpectOracle(const DecayProblem& problem, double tolerance) {
  const auto want = Oracle(problem);
  test::ExpectSameOutput(ops::DecayAttention(problem.inputs, problem.config), want.output,
                         tolerance);
  test::ExpectSameGrads(
      ops::Backward(problem.inputs, problem.config, problem.dout, problem.dfinal_state), want.grads,
      tolerance);
}

class DecayAttentionTest
    : public testing::TestWithParam<std::tuple<DecayKind, DecayStrength, at::ScalarType>> {
 protected:
  ProblemShape shape() const {
    return {.kind = std::get<0>(GetParam()), .strength = std::get<1>(GetParam())};
  }
  at::ScalarType dtype() const { return std::get<2>(GetParam()); }
};

TEST_P(DecayAttentionTest, AnyChunkSize) {
  ProblemShape s = shape();
  s.seq_len = 300;  // More than one group of chunks.
  s.initial_state = false;
  for (const int64_t chunk_size : {1, 7, 16, 25, 48, 64}) {
    SCOPED_TRACE(testing::Message() << "chunk_size " << chunk_size);
    DecayProblem problem = MakeProblem(s, 30, dtype());
    problem.inputs.chunks = test::ChunksOf(at::zeros({s.batch, s.seq_len}, at::kBool), chunk_size);
    ExpectOracle(problem, Tolerance(dtype()));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DecayAttentionTest,
                         testing::Combine(testing::ValuesIn(kKinds), testing::ValuesIn(kStrengths),
                                          testing::Values(at::kFloat, at::kDouble)));

TEST(SequenceChunks, TheCpusDefaultIs32Tokens) {
  EXPECT_EQ(ops::MakeSequenceChunks({.batch = 2, .seq_len = 100}, at::kCPU)->num_chunks(), 8);
  const auto asked =
      ops::MakeSequenceChunks({.batch = 2, .seq_len = 100, .chunk_size = 64}, at::kCPU);
  EXPECT_EQ(asked->num_chunks(), 4);
}

// The autograd function returns the same gradients to the right inputs, through out and the final
// state.
TEST(DecayAttentionAutograd, GradientsReachTheirInputs) {
  DecayProblem problem = MakeProblem({.seq_len = 70, .documents = true}, 60, at::kFloat);
  const auto want =
      ops::Backward(problem.inputs, problem.config, problem.dout, problem.dfinal_state);
  auto& in = problem.inputs;
  const std::vector<at::Tensor> leaves = {in.q.requires_grad_(), in.k.requires_grad_(),
                                          in.v.requires_grad_(), in.log_decay.requires_grad_(),
                                          in.initial_state.kv.requires_grad_()};
  const auto output = ops::DecayAttention(in, problem.config);
  const auto grads = torch::autograd::grad({output.out, output.final_state.kv}, leaves,
                                           {problem.dout, problem.dfinal_state.kv});
  EXPECT_TRUE(test::BitEqual(grads[0], want.dq));
  EXPECT_TRUE(test::BitEqual(grads[1], want.dk));
  EXPECT_TRUE(test::BitEqual(grads[2], want.dv));
  EXPECT_TRUE(test::BitEqual(grads[3], want.dlog_decay));
  EXPECT_TRUE(test::BitEqual(grads[4], want.dinitial_state.kv));
}

TEST(DecayAttentionDtype, Bf16OperandsAreComputedInFp32) {
  for (const DecayKind kind : kKinds)
    for (const bool normalised : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(kind) << ", normalised " << normalised);
      DecayProblem problem =
          MakeProblem({.seq_len = 70, .kind = kind, .normalised = normalised}, 70, at::kFloat);
      for (at::Tensor* x : {&problem.inputs.q, &problem.inputs.k, &problem.inputs.v, &problem.dout})
        *x = x->to(at::kBFloat16);
      const auto want = Oracle(problem);  // With rounded operands.
      const auto got = ops::DecayAttention(problem.inputs, problem.config);
      EXPECT_EQ(got.out.scalar_type(), at::kBFloat16);
      EXPECT_EQ(got.final_state.kv.scalar_type(), at::kFloat);
      EXPECT_TRUE(Close(got.out, want.output.out, 1.0 / 256));  // One rounding to 8 bits.
      EXPECT_TRUE(Close(got.final_state.kv, want.output.final_state.kv, 5e-6));
      if (normalised) {
        EXPECT_EQ(got.final_state.norm.scalar_type(), at::kFloat);
        EXPECT_TRUE(Close(got.final_state.norm, want.output.final_state.norm, 5e-6));
        continue;  // Its gradients are sums of rounded outputs.
      }
      const auto grads =
          ops::Backward(problem.inputs, problem.config, problem.dout, problem.dfinal_state);
      EXPECT_TRUE(Close(grads.dk, want.grads.dk, 1.0 / 256));
      // A constant decay has one long sum.
      EXPECT_TRUE(Close(grads.dlog_decay, want.grads.dlog_decay, 5e-5));
    }
}

// Constant decays that are not contiguous, as in a part of a larger tensor.
TEST(DecayAttentionHeads, ConstantDecaysWithGaps) {
  const DecayProblem problem =
      MakeProblem({.seq_len = 20, .kind = DecayKind::kPerHead}, 115, at::kFloat);
  ops::DecayAttentionInputs dense = problem.inputs, apart = problem.inputs;
  apart.log_decay = (-Uniform({2, 30}, 4)).to(at::kFloat).narrow(1, 0, 24);
  dense.log_decay = apart.log_decay.contiguous();
  const auto want = ops::DecayAttention(dense, problem.config),
             got = ops::DecayAttention(apart, problem.config);
  EXPECT_TRUE(test::BitEqual(got.out, want.out));
  EXPECT_TRUE(test::BitEqual(got.final_state.kv, want.final_state.kv));
  EXPECT_TRUE(test::BitEqual(ops::Backward(apart, problem.config, problem.dout, {}).dlog_decay,
                             ops::Backward(dense, problem.config, problem.dout, {}).dlog_decay));
}

// Without tokens the output is empty, the state is unchanged, and constant decays have a zero
// gradient.
TEST(DecayAttentionEmpty, NoTokensAndNoRows) {
  for (const DecayKind kind : kKinds) {
    for (const auto& [batch, seq_len] : {std::pair<int64_t, int64_t>{2, 0}, {0, 5}}) {
      const DecayProblem problem =
          MakeProblem({.batch = batch, .seq_len = seq_len, .kind = kind}, 120, at::kFloat);
      const auto got = ops::DecayAttention(problem.inputs, problem.config);
      EXPECT_EQ(got.out.sizes(), problem.dout.sizes());
      EXPECT_TRUE(test::BitEqual(got.final_state.kv, problem.inputs.initial_state.kv));
      const auto grads =
          ops::Backward(problem.inputs, problem.config, problem.dout, problem.dfinal_state);
      EXPECT_TRUE(test::BitEqual(grads.dinitial_state.kv, problem.dfinal_state.kv));
      EXPECT_EQ(grads.dlog_decay.sizes(), problem.inputs.log_decay.sizes());
      EXPECT_EQ(grads.dlog_decay.abs().sum().item<float>(), 0);
    }
  }
}

TEST(DecayAttentionBadInput, SaysWhatDoesNotFit) {
  const DecayProblem problem = MakeProblem({.seq_len = 10}, 130, at::kFloat);
  const auto with = [&](const auto& change) {
    ops::DecayAttentionInputs changed = problem.inputs;
    change(changed);
    return [changed, &problem] { ops::DecayAttention(changed, problem.config); };
  };
  const ExitCode internal = ExitCode::kInternal, usage = ExitCode::kUsage;
  EXPECT_HL_ERROR(with([](auto& in) { in.k = in.k.narrow(1, 0, 9); })(), internal, "do not match");
  EXPECT_HL_ERROR(with([](auto& in) { in.q = in.q.to(at::kHalf); })(), usage,
                  "decay attention does not support fp16. Use fp32, bf16 or (on the CPU) fp64.");
  EXPECT_HL_ERROR(with([](auto& in) { in.v = in.v.to(at::kBFloat16); })(), usage, "one dtype");
  EXPECT_HL_ERROR(with([](auto& in) { in.log_decay = in.log_decay.narrow(3, 0, 5); })(), internal,
                  "per channel does not fit K 24");
  EXPECT_HL_ERROR(with([](auto& in) { in.initial_state.kv = in.initial_state.kv[0]; })(), internal,
                  "initial_state");
  EXPECT_HL_ERROR(with([](auto& in) { in.k = in.k.to(at::kMeta); })(), internal,
                  "k [2, 10, 2, 24] fp32 on meta", "the same B, T and device");
  EXPECT_HL_ERROR(with([](auto& in) { in.v = in.v.to(at::kMeta); })(), internal, "fp32 on meta");
  EXPECT_HL_ERROR(
      with([](auto& in) { in.log_decay = in.log_decay.to(at::kMeta); })(), internal,
      "log_decay [2, 10, 2, 24] fp32 on meta does not fit q [2, 10, 2, 24] fp32 on cpu");
  EXPECT_HL_ERROR(
      with([](auto& in) { in.initial_state.kv = in.initial_state.kv.to(at::kMeta); })(), internal,
      "initial_state [2, 2, 24, 40] fp32 on meta does not fit states [2, 2, 24, 40] on cpu");
  EXPECT_HL_ERROR(
      with([](auto& in) {
        for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay, &in.initial_state.kv})
          *x = x->to(at::kMeta);
      })(),
      internal,
      "q [2, 10, 2, 24] fp32 on meta. Use the CPU or CUDA: other devices have no kernels.");
  EXPECT_HL_ERROR(with([](auto& in) { in.log_decay = in.log_decay.sum(); })(), internal,
                  "log_decay [] fp32", "[Hd], [Hd, K], [B, T, Hd] or [B, T, Hd, K]");
  const auto tokens = [](int64_t count) { return at::zeros({1}).expand({1, count, 1, 16}); };
  EXPECT_HL_ERROR(with([&](auto& in) { in.q = tokens((int64_t{1} << 32) + 5); })(), usage,
                  "[1, 4294967301, 1, 16]", "up to 2147483647");
  ops::DecayState state = {.kv = problem.inputs.initial_state.kv.clone()};
  const auto step = [&](const at::Tensor& k, const at::Tensor& log_decay) {
    ops::DecayAttentionStep({.q = problem.inputs.q.select(1, 0),
                             .k = k,
                             .v = problem.inputs.v.select(1, 0),
                             .log_decay = log_decay},
                            {.scale = 1}, state);
  };
  const at::Tensor k = problem.inputs.k.select(1, 0), g = problem.inputs.log_decay.select(1, 0);
  EXPECT_HL_ERROR(step(k.narrow(2, 0, 12), g), internal, "do not match");
  EXPECT_HL_ERROR(step(k.to(at::kBFloat16), g), internal, "one dtype");
  EXPECT_HL_ERROR(step(k.to(at::kMeta), g), internal, "k [2, 2, 24] fp32 on meta");
  EXPECT_HL_ERROR(step(k, g.narrow(0, 0, 1)), internal, "log_decay [1, 2, 24]",
                  "[B, Hd] or [B, Hd, K] on the same device.");
  EXPECT_HL_ERROR(step(k, g.to(at::kMeta)), internal, "log_decay [2, 2, 24] fp32 on meta");
}

TEST(DecayAttentionBadInput, GradientsThatDoNotFit) {
  const DecayProblem p = MakeProblem({.seq_len = 10}, 131, at::kFloat);
  const ExitCode internal = ExitCode::kInternal;
  const auto backward = [&](const at::Tensor& dout, const ops::DecayState& dfinal_state) {
    ops::Backward(p.inputs, p.config, dout, dfinal_state);
  };
  EXPECT_HL_ERROR(backward(p.dout.narrow(1, 0, 9), p.dfinal_state), internal,
                  "dout [2, 9, 2, 40] fp32 on cpu does not fit the output [2, 10, 2, 40] on cpu");
  EXPECT_HL_ERROR(backward(p.dout.to(at::kMeta), p.dfinal_state), internal, "fp32 on meta");
  EXPECT_HL_ERROR(backward(p.dout, {.kv = p.dfinal_state.kv[0]}), internal,
                  "dfinal_state [2, 24, 40] fp32 on cpu does not fit states [2, 2, 24, 40] on cpu");
  EXPECT_HL_ERROR(backward(p.dout, {.kv = p.dfinal_state.kv.to(at::kMeta)}), internal,
                  "fp32 on meta");
  EXPECT_HL_ERROR(ops::BackwardSummarise(p.inputs, p.config, p.dout.narrow(2, 0, 1)), internal,
                  "dout [2, 10, 1, 40]");
}

TEST(DecayAttentionStepTest, HeadsDivideThoseOfTheState) {
  ops::DecayState state = {.kv = at::zeros({2, 4, 6, 5})};
  struct Heads {
    int64_t q = 4, k = 4, v = 4, decay = 4;
  };
  const auto step = [&](const Heads& heads) {
    return ops::DecayAttentionStep({.q = Normal({2, heads.q, 6}, 1, at::kFloat),
                                    .k = Normal({2, heads.k, 6}, 2, at::kFloat),
                                    .v = Normal({2, heads.v, 5}, 3, at::kFloat),
                                    .log_decay = -Uniform({2, heads.decay}, 4).to(at::kFloat)},
                                   {.scale = 1}, state);
  };
  EXPECT_EQ(step({.q = 4, .k = 2, .v = 1, .decay = 2}).sizes(), at::IntArrayRef({2, 4, 5}));
  const ExitCode usage = ExitCode::kUsage;
  EXPECT_HL_ERROR(step({.q = 3}), usage, "3, 4, 4 and 4 heads of q, k, v and log_decay",
                  "a state of 4. Use divisors of 4.");
  EXPECT_HL_ERROR(step({.k = 8}), usage, "4, 8, 4 and 4 heads");
  EXPECT_HL_ERROR(step({.v = 3}), usage, "4, 4, 3 and 4 heads");
  EXPECT_HL_ERROR(step({.decay = 8}), usage, "4, 4, 4 and 8 heads");
}

}  // namespace
}  // namespace halflife::kernels
