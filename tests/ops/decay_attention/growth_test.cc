// Constant decays above 1 with the normalizer: outputs and gradients equal the fp64 oracle, which
// can represent e^700. The state is passed on with its log scale.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "ops/decay_attention/tensor_problem.h"
#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Close;
using test::DecayProblem;
using test::LargestError;
using test::MakeProblem;
using test::Normal;
using test::Oracle;
using test::Uniform;

// log_decay is between -0.05 and 0.05 per channel, or 0.05 and -0.02 per head. The state has no
// gradient, because its scale is arbitrary.
DecayProblem GrowingProblem(int64_t seq_len, bool per_channel, uint64_t seed, at::ScalarType dtype,
                            bool key_scale = false) {
  DecayProblem problem = MakeProblem(
      {.batch = 1,
       .seq_len = seq_len,
       .dim_k = 8,
       .dim_v = 6,
       .kind = per_channel ? kernels::DecayKind::kPerHeadChannel : kernels::DecayKind::kPerHead,
       .initial_state = false,
       .normalised = true,
       .key_scale = key_scale},
      seed, dtype);
  at::Tensor& g = problem.inputs.log_decay;
  g = (per_channel ? Uniform({2, 8}, seed) * 0.1 - 0.05 : at::full({2}, 0.05, at::kDouble))
          .to(dtype);
  if (!per_channel) g.select(0, 1).fill_(-0.02);
  problem.config.allow_growth = true;
  problem.dfinal_state = {};
  return problem;
}

// Returns exp(log_scale) times the state, in fp64.
DecayState AtTrueScale(const DecayState& state) {
  const at::Tensor scale = state.log_scale.exp().unsqueeze(2);  // [sequences, H, 1]
  return {.kv = state.kv.to(at::kDouble) * scale.unsqueeze(3),
          .norm = state.norm.to(at::kDouble) * scale};
}

void ExpectGrads(const DecayAttentionGrads& got, const DecayAttentionGrads& want, double tolerance,
                 double decay_tolerance) {
  EXPECT_LE(LargestError(got.dq, want.dq), tolerance) << "dq";
  EXPECT_LE(LargestError(got.dk, want.dk), tolerance) << "dk";
  EXPECT_LE(LargestError(got.dv, want.dv), tolerance) << "dv";
  EXPECT_LE(LargestError(got.dlog_decay, want.dlog_decay), decay_tolerance) << "dlog_decay";
  if (want.dkey_scale.defined()) {
    EXPECT_LE(LargestError(got.dkey_scale, want.dkey_scale), tolerance) << "dkey_scale";
  }
}

// log_decay sums to up to 205. In fp32 the plain state would overflow at 88.
TEST(DecayGrowth, FarBeyondTheRangeOfFloat) {
  for (const bool per_channel : {false, true})
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      SCOPED_TRACE(testing::Message() << "per channel " << per_channel << ", " << dtype);
      const DecayProblem problem = GrowingProblem(4096, per_channel, 300, dtype, true);
      const auto want = Oracle(problem);
      const auto got = DecayAttention(problem.inputs, problem.config);
      // fp64: 4,096 roundings, and exponents of 205. fp32: relative to the largest value, as in
      // other tests. The gradient of log_decay weighs pairs of tokens with their distance. In the
      // channel that dominates a row, the contributions of numerator and denominator cancel: the
      // magnitudes of its terms sum to 46,000 times the largest gradient, so one rounding per term
      // may cost 2.8e-3. Measured: 1.9e-4.
      const bool wide = dtype == at::kDouble;
      EXPECT_TRUE(got.out.isfinite().all().item<bool>());
      EXPECT_LE(LargestError(got.out, want.output.out), wide ? 1e-12 : 5e-6);
      const DecayState state = AtTrueScale(got.final_state);
      EXPECT_LE(LargestError(state.kv, want.output.final_state.kv), wide ? 1e-12 : 5e-6);
      EXPECT_LE(LargestError(state.norm, want.output.final_state.norm), wide ? 1e-12 : 5e-6);
      ExpectGrads(Backward(problem.inputs, problem.config, problem.dout, {}), want.grads,
                  wide ? 1e-11 : 1e-5, wide ? 1e-10 : 5e-4);
    }
}

// Without growth, the option changes no bit, because it multiplies by 1.
TEST(DecayGrowth, DecaysBelowOneAreUntouched) {
  DecayProblem problem = MakeProblem({.seq_len = 100,
                                      .kind = kernels::DecayKind::kPerHeadChannel,
                                      .normalised = true,
                                      .key_scale = true},
                                     310, at::kFloat);
  const auto want = DecayAttention(problem.inputs, problem.config);
  problem.config.allow_growth = true;
  const auto got = DecayAttention(problem.inputs, problem.config);
  EXPECT_TRUE(test::BitEqual(got.out, want.out));
  EXPECT_TRUE(test::BitEqual(got.final_state.kv, want.final_state.kv));
  EXPECT_EQ(got.final_state.log_scale.abs().max().item<double>(), 0);
}

// Within the range of the plain state, the numbers are equal, and so are the gradients by autograd,
// including those of the state.
TEST(DecayGrowth, IsThePlainStateWhereThatHolds) {
  DecayProblem problem = GrowingProblem(60, true, 320, at::kDouble, true);
  problem.inputs.initial_state = {.kv = Normal({1, 2, 8, 6}, 1), .norm = Uniform({1, 2, 8}, 2) + 1};
  problem.dfinal_state = {.kv = Normal({1, 2, 8, 6}, 3), .norm = Normal({1, 2, 8}, 4)};
  const auto run = [&](bool growth) {
    DecayAttentionInputs in = problem.inputs;
    std::vector<at::Tensor> leaves;
    for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay, &in.key_scale, &in.initial_state.kv,
                          &in.initial_state.norm}) {
      *x = x->detach().clone().requires_grad_();
      leaves.push_back(*x);
    }
    DecayAttentionConfig config = problem.config;
    config.allow_growth = growth;
    const auto [out, state] = DecayAttention(in, config);
    // The values that a later segment reads from the state do not depend on its scale.
    const at::Tensor q = in.q.select(1, 0);  // [B, H, K]
    const at::Tensor later = (q.unsqueeze(3) * state.kv).sum(2) / (q * state.norm).sum(2, true);
    const at::Tensor loss = (out * problem.dout).sum() + later.sin().sum();
    std::vector<at::Tensor> results = {out.detach(), later.detach()};
    for (const at::Tensor& grad : torch::autograd::grad({loss}, leaves)) results.push_back(grad);
    return results;
  };
  const auto got = run(true), want = run(false);
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(Close(got[i], want[i], 1e-11)) << "result " << i;
}

DecayAttentionInputs Part(const DecayProblem& problem, int64_t begin, int64_t end) {
  DecayAttentionInputs part = problem.inputs;
  for (at::Tensor* x : {&part.q, &part.k, &part.v, &part.key_scale})
    if (x->defined()) *x = x->narrow(1, begin, end - begin);
  if (problem.starts.defined())
    part.chunks = test::ChunksOf(problem.starts.narrow(1, begin, end - begin));
  return part;
}

void ExpectSameAtTrueScale(const DecayState& got, const DecayState& want, double tolerance) {
  const DecayState a = AtTrueScale(got), b = AtTrueScale(want);
  EXPECT_LE(LargestError(a.kv, b.kv), tolerance);
  EXPECT_LE(LargestError(a.norm, b.norm), tolerance);
}

// If the state is carried with its log scale, splits change nothing, even far beyond the range of
// fp32.
TEST(DecayGrowth, SplitAnywhereAndCarryIsTheWhole) {
  constexpr int64_t kTokens = 2500;
  for (const bool documents : {false, true}) {
    DecayProblem problem = GrowingProblem(kTokens, true, 340, at::kFloat);
    if (documents) {
      problem.starts = at::zeros({1, kTokens}, at::kBool);
      for (const int64_t start : {700, 701, 2100}) problem.starts.select(1, start).fill_(true);
      problem.inputs.chunks = test::ChunksOf(problem.starts);
    }
    const auto whole = DecayAttention(problem.inputs, problem.config);
    EXPECT_LE(LargestError(whole.out, Oracle(problem).output.out), 5e-6);
    for (const int64_t split : {1, 64, 700, 1999, 2499}) {
      SCOPED_TRACE(testing::Message() << "split " << split << ", documents " << documents);
      const auto first = DecayAttention(Part(problem, 0, split), problem.config);
      DecayAttentionInputs rest = Part(problem, split, kTokens);
      rest.initial_state = first.final_state;
      const auto second = DecayAttention(rest, problem.config);
      EXPECT_TRUE(Close(at::cat({first.out, second.out}, 1), whole.out, 2e-6));
      ExpectSameAtTrueScale(second.final_state, whole.final_state, 5e-6);
      EXPECT_TRUE(Close(second.final_state.log_scale, whole.final_state.log_scale, 1e-12));
    }
  }
}

TEST(DecayGrowth, StepsAreTheWhole) {
  constexpr int64_t kTokens = 2060, kPrefill = 2000;
  for (const bool per_channel : {false, true}) {
    const DecayProblem problem = GrowingProblem(kTokens, per_channel, 350, at::kFloat, true);
    const DecayAttentionInputs& in = problem.inputs;
    const auto whole = DecayAttention(in, problem.config);
    DecayState state = DecayAttention(Part(problem, 0, kPrefill), problem.config).final_state;
    for (int64_t t = kPrefill; t < kTokens; ++t) {
      const at::Tensor out = DecayAttentionStep(test::TokenAt(in, t), problem.config, state);
      EXPECT_TRUE(Close(out, whole.out.select(1, t), 2e-6)) << "token " << t;
    }
    ExpectSameAtTrueScale(state, whole.final_state, 5e-6);
  }
}

TEST(DecayGrowth, StepsFromNothingAreTheWhole) {
  const DecayProblem problem = GrowingProblem(40, true, 360, at::kFloat);
  const DecayAttentionInputs& in = problem.inputs;
  const auto whole = DecayAttention(in, problem.config);
  DecayState state = {.kv = at::zeros({1, 2, 8, 6}),
                      .norm = at::zeros({1, 2, 8}),
                      .log_scale = at::zeros({1, 2}, at::kDouble)};
  for (int64_t t = 0; t < 40; ++t) {
    const at::Tensor out = DecayAttentionStep(test::TokenAt(in, t), problem.config, state);
    EXPECT_TRUE(Close(out, whole.out.select(1, t), 2e-6)) << "token " << t;
  }
  EXPECT_TRUE(Close(state.log_scale, whole.final_state.log_scale, 1e-12));
}

// Documents and packed sequences are independent of growth in earlier ones.
TEST(DecayGrowth, SequencesCountForThemselves) {
  const std::vector<int32_t> limits = {0, 0, 1900, 1901, 4000};
  DecayProblem problem = GrowingProblem(4000, true, 370, at::kFloat);
  DecayAttentionInputs& in = problem.inputs;
  const DecayState initial = {.kv = Normal({4, 2, 8, 6}, 1, at::kFloat),
                              .norm = Uniform({4, 2, 8}, 2).to(at::kFloat) + 0.5,
                              .log_scale = Uniform({4, 2}, 3) * 100};
  in.initial_state = initial;
  in.chunks = MakeSequenceChunks({.batch = 1, .seq_len = 4000, .cu_seqlens = limits}, at::kCPU);
  const auto packed = DecayAttention(in, problem.config);
  EXPECT_TRUE(test::BitEqual(packed.final_state.kv[0], initial.kv[0]));
  EXPECT_TRUE(test::BitEqual(packed.final_state.log_scale[0], initial.log_scale[0]));
  for (int64_t n = 1; n < 4; ++n) {
    DecayAttentionInputs one = Part(problem, limits[n], limits[n + 1]);
    one.chunks = nullptr;
    one.initial_state = {.kv = initial.kv.narrow(0, n, 1),
                         .norm = initial.norm.narrow(0, n, 1),
                         .log_scale = initial.log_scale.narrow(0, n, 1)};
    const auto want = DecayAttention(one, problem.config);
    EXPECT_TRUE(Close(packed.out.narrow(1, limits[n], limits[n + 1] - limits[n]), want.out, 1e-6));
    EXPECT_TRUE(Close(packed.final_state.kv[n], want.final_state.kv[0], 1e-6));
    EXPECT_TRUE(Close(packed.final_state.log_scale[n], want.final_state.log_scale[0], 1e-12));
  }
}

// 3,000 masked tokens before the first key would scale it by e^-150. They must be ignored.
TEST(DecayGrowth, MaskedTokensBeforeTheFirstKeyDoNotCount) {
  constexpr int64_t kMasked = 3000, kTokens = 3100;
  DecayProblem problem = GrowingProblem(kTokens, true, 380, at::kFloat, true);
  problem.inputs.key_scale.narrow(1, 0, kMasked).zero_();
  const auto got = DecayAttention(problem.inputs, problem.config);
  const auto want = DecayAttention(Part(problem, kMasked, kTokens), problem.config);
  EXPECT_EQ(got.out.narrow(1, 0, kMasked).abs().max().item<float>(), 0);
  EXPECT_TRUE(Close(got.out.narrow(1, kMasked, kTokens - kMasked), want.out, 2e-6));
  EXPECT_TRUE(Close(got.final_state.log_scale, want.final_state.log_scale, 1e-12));
  problem.inputs.initial_state = {.kv = at::zeros({1, 2, 8, 6}), .norm = at::zeros({1, 2, 8})};
  EXPECT_TRUE(test::BitEqual(DecayAttention(problem.inputs, problem.config).out, got.out));
}

// A step of e^90 overflows fp32 immediately. Every row is then the first key's value to 1e-38.
TEST(DecayGrowth, AnySize) {
  DecayProblem problem = GrowingProblem(5, false, 385, at::kFloat);
  problem.inputs.log_decay.fill_(90);
  const auto got = DecayAttention(problem.inputs, problem.config);
  EXPECT_LE(LargestError(got.out, Oracle(problem).output.out), 5e-6);
  EXPECT_TRUE(Close(got.out.select(1, 4), problem.inputs.v.select(1, 0), 1e-6));
}

TEST(DecayGrowth, SharedDecayHeadsAreAsIfRepeated) {
  DecayProblem problem = GrowingProblem(300, true, 390, at::kFloat);
  DecayAttentionInputs shared = problem.inputs;
  shared.log_decay = problem.inputs.log_decay.narrow(0, 0, 1);
  problem.inputs.log_decay = shared.log_decay.repeat_interleave(2, 0);
  const auto got = DecayAttention(shared, problem.config);
  const auto want = DecayAttention(problem.inputs, problem.config);
  EXPECT_TRUE(Close(got.out, want.out, 1e-6));
  EXPECT_TRUE(test::BitEqual(got.final_state.log_scale, want.final_state.log_scale));
}

TEST(DecayGrowth, NoTokensAndNoRows) {
  for (const auto& [batch, seq_len] : {std::pair<int64_t, int64_t>{1, 0}, {0, 5}}) {
    DecayProblem problem = GrowingProblem(5, true, 395, at::kFloat);
    DecayAttentionInputs& in = problem.inputs;
    for (at::Tensor* x : {&in.q, &in.k, &in.v}) *x = x->narrow(0, 0, batch).narrow(1, 0, seq_len);
    const auto got = DecayAttention(in, problem.config);
    EXPECT_EQ(got.final_state.log_scale.sizes(), at::IntArrayRef({batch, 2}));
    EXPECT_EQ(got.final_state.log_scale.abs().sum().item<double>(), 0);
  }
}

TEST(DecayGrowthBadInput, SaysWhatDoesNotFit) {
  const DecayProblem problem = GrowingProblem(10, true, 400, at::kFloat);
  const ExitCode usage = ExitCode::kUsage, internal = ExitCode::kInternal;
  const auto with = [&](const auto& change) {
    DecayAttentionInputs in = problem.inputs;
    DecayAttentionConfig config = problem.config;
    change(in, config);
    return DecayAttention(in, config);
  };
  EXPECT_HL_ERROR(with([](auto&, auto& config) { config.norm = kernels::NormKind::kNone; }), usage,
                  "allow_growth without the normalizer", "Set norm = kSumOfKeys.");
  EXPECT_HL_ERROR(with([](auto& in, auto&) {
                    in.log_decay = at::zeros({1, 10, 2});
                  }),
                  usage, "allow_growth with log_decay [1, 10, 2] fp32",
                  "a constant log_decay, [Hd] or [Hd, K], or none.");
  EXPECT_HL_ERROR(with([](auto& in, auto&) {
                    in.log_key_scale = at::zeros({1, 10, 3});
                  }),
                  internal, "log_key_scale [1, 10, 3] fp32", "[B, T, H], which is [1, 10, 2]");
  const at::Tensor kv = at::zeros({1, 2, 8, 6});
  const auto with_scale = [&](const at::Tensor& state, const at::Tensor& log_scale) {
    return with([&](auto& in, auto&) { in.initial_state = {.kv = state, .log_scale = log_scale}; });
  };
  EXPECT_HL_ERROR(with_scale(kv, at::zeros({1, 2})), internal, "log_scale [1, 2] fp32 on cpu",
                  "fp64, with the state that it scales.");
  EXPECT_HL_ERROR(with_scale(kv, at::zeros({2, 1}, at::kDouble)), internal,
                  "log_scale [2, 1] fp64 on cpu does not fit states [1, 2] on cpu");
  EXPECT_HL_ERROR(with_scale(kv[0], {}), internal,
                  "initial_state [2, 8, 6] fp32 on cpu does not fit states [1, 2, 8, 6] on cpu");
  EXPECT_HL_ERROR(with_scale({}, at::zeros({1, 2}, at::kDouble)), internal,
                  "log_scale [1, 2] fp64 on cpu has no states");
}

TEST(DecayGrowthBadInput, StepsThatDoNotFit) {
  const DecayProblem problem = GrowingProblem(1, true, 410, at::kFloat);
  const DecayAttentionInputs& in = problem.inputs;
  const auto step = [&](const at::Tensor& log_scale, bool constant) {
    DecayState state = {
        .kv = at::zeros({1, 2, 8, 6}), .norm = at::zeros({1, 2, 8}), .log_scale = log_scale};
    return DecayAttentionStep({.q = in.q.select(1, 0),
                               .k = in.k.select(1, 0),
                               .v = in.v.select(1, 0),
                               .log_decay = constant ? in.log_decay : in.log_decay.unsqueeze(0),
                               .constant_decay = constant},
                              problem.config, state);
  };
  const at::Tensor log_scale = at::zeros({1, 2}, at::kDouble);
  EXPECT_HL_ERROR(step({}, true), ExitCode::kInternal, "growth without a log_scale",
                  "fp64 [1, 2], zeros for an empty state.");
  EXPECT_HL_ERROR(step(at::zeros({1, 2}), true), ExitCode::kInternal, "log_scale [1, 2] fp32");
  EXPECT_HL_ERROR(step(log_scale, false), ExitCode::kUsage,
                  "allow_growth with log_decay [1, 2, 8] fp32");
}

}  // namespace
}  // namespace halflife::ops
