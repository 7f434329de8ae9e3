// The normalizer, key_scale and the sum of keys in the state equal the oracle and finite
// differences. Equivalent calls give equal results.
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <torch/csrc/autograd/autograd.h>

#include "ops/decay_attention/tensor_problem.h"
#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using test::Close;
using test::DecayProblem;
using test::MakeProblem;
using test::Normal;
using test::Oracle;
using test::ProblemShape;
using test::Uniform;

constexpr DecayKind kKinds[] = {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                DecayKind::kPerToken, DecayKind::kPerTokenChannel};

struct Variant {
  DecayKind kind = DecayKind::kPerHead;
  bool normalised = true, key_scale = true;

  ProblemShape Shape() const {
    return {.kind = kind, .normalised = normalised, .key_scale = key_scale};
  }
};
std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  for (const DecayKind kind : kKinds)
    for (const bool normalised : {false, true})
      for (const bool key_scale : {false, true}) variants.push_back({kind, normalised, key_scale});
  return variants;
}
void PrintTo(const Variant& variant, std::ostream* out) {
  *out << "kind " << static_cast<int>(variant.kind) << (variant.normalised ? ", normalised" : "")
       << (variant.key_scale ? ", key_scale" : "");
}

class DecayNormaliserTest : public testing::TestWithParam<Variant> {};

// fp64: as without the normalizer. fp32, relative to the largest value: sums of up to 200 positive
// terms, and gradients that are differences of two such sums. With positive q and k they cancel at
// most to a tenth.
TEST_P(DecayNormaliserTest, EqualsTheOracle) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
    for (const bool documents : {false, true})
      for (const int64_t seq_len : {1, 64, 130}) {
        SCOPED_TRACE(testing::Message() << "seq_len " << seq_len << ", documents " << documents);
        ProblemShape shape = GetParam().Shape();
        shape.seq_len = seq_len;
        shape.documents = documents;
        const DecayProblem problem = MakeProblem(shape, 200, dtype);
        const double tolerance = dtype == at::kDouble ? 1e-12 : 5e-6;
        const auto want = Oracle(problem);
        test::ExpectSameOutput(ops::DecayAttention(problem.inputs, problem.config), want.output,
                               tolerance);
        test::ExpectSameGrads(
            ops::Backward(problem.inputs, problem.config, problem.dout, problem.dfinal_state),
            want.grads, tolerance);
      }
}

TEST_P(DecayNormaliserTest, PrefillThenStepsIsTheWhole) {
  constexpr int64_t kTokens = 80, kPrefill = 67;
  ProblemShape shape = GetParam().Shape();
  shape.seq_len = kTokens;
  const DecayProblem problem = MakeProblem(shape, 220, at::kFloat);
  const ops::DecayAttentionInputs& in = problem.inputs;
  const auto whole = ops::DecayAttention(in, problem.config);
  const bool constant = in.log_decay.defined() && in.log_decay.dim() <= 2;
  ops::DecayAttentionInputs prefill = in;
  for (at::Tensor* x : {&prefill.q, &prefill.k, &prefill.v, &prefill.key_scale})
    if (x->defined()) *x = x->narrow(1, 0, kPrefill);
  if (in.log_decay.defined() && !constant) prefill.log_decay = in.log_decay.narrow(1, 0, kPrefill);
  ops::DecayState state = ops::DecayAttention(prefill, problem.config).final_state;
  for (int64_t t = kPrefill; t < kTokens; ++t) {
    const at::Tensor out = ops::DecayAttentionStep(test::TokenAt(in, t), problem.config, state);
    EXPECT_TRUE(Close(out, whole.out.select(1, t), 2e-6)) << "token " << t;
  }
  test::ExpectSameState(state, whole.final_state, 2e-6, "state");
}

// Packed sequences with separate initial states equal separate sequences.
TEST_P(DecayNormaliserTest, PackedSequencesAreSeparateOnes) {
  const std::vector<int32_t> limits = {0, 0, 1, 66, 100};
  ProblemShape shape = GetParam().Shape();
  shape.batch = 1, shape.seq_len = 100;
  DecayProblem problem = MakeProblem(shape, 230, at::kFloat);
  const auto sequences = static_cast<int64_t>(limits.size()) - 1;
  ops::DecayAttentionInputs& in = problem.inputs;
  in.initial_state.kv = Normal({sequences, 2, 24, 40}, 1, at::kFloat);
  if (GetParam().normalised)
    in.initial_state.norm = Uniform({sequences, 2, 24}, 2).to(at::kFloat) + 0.5;
  in.chunks = ops::MakeSequenceChunks({.batch = 1, .seq_len = 100, .cu_seqlens = limits}, at::kCPU);
  const auto packed = ops::DecayAttention(in, problem.config);
  for (int64_t n = 0; n < sequences; ++n) {
    const int64_t begin = limits[n], length = limits[n + 1] - begin;
    const auto part = [&](const at::Tensor& x, int64_t dim) {
      if (!x.defined()) return x;
      return dim == 0 ? x.narrow(0, n, 1) : x.narrow(1, begin, length);
    };
    ops::DecayAttentionInputs one = in;
    one.chunks = nullptr;
    for (at::Tensor* x : {&one.q, &one.k, &one.v, &one.key_scale}) *x = part(*x, 1);
    if (in.log_decay.defined() && in.log_decay.dim() > 2) one.log_decay = part(in.log_decay, 1);
    one.initial_state = {.kv = part(in.initial_state.kv, 0),
                         .norm = part(in.initial_state.norm, 0)};
    test::ExpectSameOutput({.out = part(packed.out, 1),
                            .final_state = {.kv = part(packed.final_state.kv, 0),
                                            .norm = part(packed.final_state.norm, 0)}},
                           ops::DecayAttention(one, problem.config), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DecayNormaliserTest, testing::ValuesIn(Variants()));

// Keys of one head and values of two heads, which four query heads with separate key scales read,
// behave as if they were repeated.
TEST(DecayNormaliser, SharedHeadsAreAsIfRepeated) {
  DecayProblem problem = MakeProblem(
      {.seq_len = 90, .heads = 4, .normalised = true, .key_scale = true}, 240, at::kFloat);
  ops::DecayAttentionInputs shared = problem.inputs;
  const auto repeat = [](at::Tensor& few, at::Tensor& many, int64_t heads) {
    few = few.narrow(2, 0, heads).contiguous();
    many = few.repeat_interleave(4 / heads, 2);
  };
  repeat(shared.k, problem.inputs.k, 1);
  repeat(shared.v, problem.inputs.v, 2);
  repeat(shared.log_decay, problem.inputs.log_decay, 2);
  test::ExpectSameOutput(ops::DecayAttention(shared, problem.config),
                         ops::DecayAttention(problem.inputs, problem.config), 1e-6);
  const auto got = ops::Backward(shared, problem.config, problem.dout, problem.dfinal_state);
  auto want = ops::Backward(problem.inputs, problem.config, problem.dout, problem.dfinal_state);
  const auto fold = [](at::Tensor& x, int64_t heads) {
    x = x.unflatten(2, {heads, 4 / heads}).sum(3);
  };
  fold(want.dk, 1), fold(want.dv, 2), fold(want.dlog_decay, 2);
  test::ExpectSameGrads(got, want, 2e-6);
}

TEST(DecayNormaliserAutograd, OneOutputIsEnough) {
  DecayProblem problem =
      MakeProblem({.seq_len = 70, .normalised = true, .key_scale = true}, 250, at::kFloat);
  ops::DecayAttentionInputs& in = problem.inputs;
  const std::vector<at::Tensor> leaves = {in.k.requires_grad_(), in.log_decay.requires_grad_(),
                                          in.key_scale.requires_grad_(),
                                          in.initial_state.norm.requires_grad_()};
  const auto output = ops::DecayAttention(in, problem.config);
  const auto expect = [&](const at::Tensor& of, const at::Tensor& upstream,
                          const DecayProblem& alone) {
    const auto want = Oracle(alone).grads;
    const auto got = torch::autograd::grad({of}, leaves, {upstream}, /*retain_graph=*/true);
    EXPECT_TRUE(Close(got[0], want.dk, 5e-6));
    EXPECT_TRUE(Close(got[1], want.dlog_decay, 5e-6));
    EXPECT_TRUE(Close(got[2], want.dkey_scale, 5e-6));
    EXPECT_TRUE(Close(got[3], want.dinitial_state.norm, 5e-6));
  };
  DecayProblem alone = problem;
  alone.dfinal_state = {};
  expect(output.out, problem.dout, alone);
  alone = problem;
  alone.dout = at::zeros_like(problem.dout);
  alone.dfinal_state.kv.reset();
  expect(output.final_state.norm, problem.dfinal_state.norm, alone);
}

// A key of scale 0 is ignored: its value has no influence, and rows that see no key give 0.
TEST(DecayNormaliser, MaskedKeysHaveNoEffect) {
  DecayProblem problem = MakeProblem({.seq_len = 70,
                                      .kind = DecayKind::kPerHeadChannel,
                                      .initial_state = false,
                                      .normalised = true,
                                      .key_scale = true},
                                     260, at::kFloat);
  ops::DecayAttentionInputs& in = problem.inputs;
  in.key_scale.narrow(1, 0, 5).zero_();
  in.key_scale.narrow(1, 40, 3).zero_();
  ops::DecayAttentionInputs changed = in;
  changed.v = in.v.clone();
  changed.v.narrow(1, 0, 5).fill_(100), changed.v.narrow(1, 40, 3).fill_(-100);
  const at::Tensor out = ops::DecayAttention(in, problem.config).out;
  EXPECT_TRUE(test::BitEqual(ops::DecayAttention(changed, problem.config).out, out));
  EXPECT_EQ(out.narrow(1, 0, 5).abs().max().item<float>(), 0);
  const auto grads = ops::Backward(in, problem.config, problem.dout, {});
  for (const at::Tensor& grad : {grads.dk, grads.dv}) {
    EXPECT_EQ(grad.narrow(1, 0, 5).abs().max().item<float>(), 0);
    EXPECT_EQ(grad.narrow(1, 40, 3).abs().max().item<float>(), 0);
    EXPECT_TRUE(grad.isfinite().all().item<bool>());
  }
}

TEST(DecayNormaliserBadInput, SaysWhatDoesNotFit) {
  const DecayProblem problem =
      MakeProblem({.seq_len = 10, .normalised = true, .key_scale = true}, 280, at::kFloat);
  const ExitCode internal = ExitCode::kInternal;
  const auto with = [&](const auto& change) {
    ops::DecayAttentionInputs in = problem.inputs;
    ops::DecayAttentionConfig config = problem.config;
    change(in, config);
    return ops::DecayAttention(in, config);
  };
  EXPECT_HL_ERROR(with([](auto& in, auto&) { in.key_scale = in.key_scale.narrow(2, 0, 1); }),
                  internal, "key_scale [2, 10, 1] fp32 on cpu does not fit q [2, 10, 2, 24]",
                  "[B, T, H], which is [2, 10, 2], on the same device.");
  EXPECT_HL_ERROR(with([](auto& in, auto&) { in.key_scale = in.key_scale.to(at::kMeta); }),
                  internal, "key_scale [2, 10, 2] fp32 on meta");
  EXPECT_HL_ERROR(with([](auto& in, auto&) { in.initial_state.norm = in.initial_state.norm[0]; }),
                  internal,
                  "initial_state.norm [2, 24] fp32 on cpu does not fit states [2, 2, 24] on cpu");
  EXPECT_HL_ERROR(with([](auto&, auto& config) { config.norm = NormKind::kNone; }), internal,
                  "initial_state.norm [2, 2, 24] fp32 on cpu, but the config has no normalizer",
                  "norm = kSumOfKeys, or pass no such state.");
  EXPECT_HL_ERROR(with([](auto&, auto& config) { config.norm_eps = 0; }), ExitCode::kUsage,
                  "norm_eps is 0; it must be positive");
  EXPECT_HL_ERROR(with([](auto& in, auto&) {
                    in.initial_state.log_scale = at::zeros({2, 2});
                  }),
                  internal, "initial_state.log_scale [2, 2] fp32 on cpu",
                  "the config does not allow growth");
  EXPECT_HL_ERROR(ops::Backward(problem.inputs, problem.config, problem.dout,
                                {.norm = problem.dfinal_state.norm.narrow(2, 0, 3)}),
                  internal,
                  "dfinal_state.norm [2, 2, 3] fp32 on cpu does not fit states [2, 2, 24]");
}

TEST(DecayNormaliserBadInput, StepsThatDoNotFit) {
  const DecayProblem problem =
      MakeProblem({.seq_len = 1, .normalised = true, .key_scale = true}, 290, at::kFloat);
  const ops::DecayAttentionInputs& in = problem.inputs;
  const auto step = [&](ops::DecayState state, const at::Tensor& key_scale,
                        const ops::DecayAttentionConfig& config) {
    return ops::DecayAttentionStep({.q = in.q.select(1, 0),
                                    .k = in.k.select(1, 0),
                                    .v = in.v.select(1, 0),
                                    .log_decay = in.log_decay.select(1, 0),
                                    .key_scale = key_scale},
                                   config, state);
  };
  const ExitCode internal = ExitCode::kInternal;
  const ops::DecayState state = {.kv = in.initial_state.kv.clone(),
                                 .norm = in.initial_state.norm.clone()};
  const at::Tensor key_scale = in.key_scale.select(1, 0);
  EXPECT_HL_ERROR(step({.kv = state.kv}, key_scale, problem.config), internal,
                  "state.norm undefined does not fit state.kv [2, 2, 24, 40] fp32 on cpu",
                  "a contiguous [2, 2, 24] of fp32 on the same device.");
  EXPECT_HL_ERROR(
      step({.kv = state.kv, .norm = state.norm.to(at::kDouble)}, key_scale, problem.config),
      internal, "state.norm [2, 2, 24] fp64");
  EXPECT_HL_ERROR(step(state, key_scale, {.scale = 1}), internal,
                  "state.norm [2, 2, 24] fp32 on cpu, but the config has no normalizer");
  EXPECT_HL_ERROR(step(state, key_scale[0], problem.config), internal,
                  "key_scale [2] fp32 on cpu does not fit state", "[B, H] on the same device.");
  EXPECT_HL_ERROR(step({}, key_scale, problem.config), internal, "state undefined");
}

}  // namespace
}  // namespace halflife::kernels
