// The delta rule against its recurrence, token by token in fp64: outputs, states and all gradients.
#include "ops/delta_rule/delta_rule.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softplus.h>

#include <gmock/gmock.h>

#include <tuple>
#include <utility>

#include "kernels/delta_rule/golden.h"
#include "ops/delta_rule/delta_problem.h"
#include "ops/delta_rule/delta_rule_internal.h"
#include "ops/torch/host_waits.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::AnswerOf;
using test::BitEqual;
using test::Close;
using test::DeltaAnswer;
using test::DeltaGate;
using test::DeltaProblem;
using test::DeltaRuleAnswer;
using test::ExpectSameAnswer;
using test::MakeDeltaProblem;
using test::Normal;
using test::RecurrenceAnswer;

// Each test runs with the kernels and with the LibTorch form, which GPUs use.
class DeltaRuleTest : public testing::TestWithParam<std::tuple<DeltaGate, bool>> {
 protected:
  static DeltaGate gate() { return std::get<0>(GetParam()); }
  static bool composed() { return std::get<1>(GetParam()); }
  static DeltaRuleOutput Rule(const DeltaRuleInputs& inputs, double scale) {
    return composed() ? ComposedDeltaRule(inputs, scale) : DeltaRule(inputs, scale);
  }
  static DeltaAnswer Answer(const DeltaProblem& problem) {
    return AnswerOf(problem, [&](const DeltaRuleInputs& in) { return Rule(in, problem.scale); });
  }
};

TEST_P(DeltaRuleTest, EqualsItsRecurrence) {
  uint64_t seed = 10;
  for (const int64_t seq_len : {1, 15, 16, 17, 63, 64, 65, 200}) {
    for (const int64_t value_heads : {2, 4, 8}) {
      if (seq_len > 65 && value_heads == 8) continue;
      SCOPED_TRACE(testing::Message() << seq_len << " tokens, " << value_heads << " value heads");
      const DeltaProblem problem = MakeDeltaProblem(
          {.seq_len = seq_len, .value_heads = value_heads, .gate = gate(), .max_beta = 2},
          seed += 10);
      ExpectSameAnswer(Answer(problem), RecurrenceAnswer(problem));
    }
  }
}

// Without an initial state, and for a row without tokens.
TEST_P(DeltaRuleTest, AcceptsNoStateAndNoTokens) {
  DeltaProblem problem = MakeDeltaProblem({.seq_len = 30, .gate = gate()}, 20);
  problem.inputs.initial_state.reset();
  ExpectSameAnswer(Answer(problem), RecurrenceAnswer(problem));
  const DeltaProblem empty = MakeDeltaProblem({.seq_len = 0, .gate = gate()}, 21);
  const DeltaAnswer answer = Answer(empty);
  EXPECT_EQ(answer.out.sizes(), empty.inputs.v.sizes());
  EXPECT_TRUE(BitEqual(answer.final_state, empty.inputs.initial_state));
  EXPECT_TRUE(BitEqual(answer.dinitial_state, empty.dfinal_state));
}

// A log decay of -inf resets the state, and no gradient is NaN.
TEST_P(DeltaRuleTest, ResetsAreExact) {
  if (gate() == DeltaGate::kNone) return;
  const DeltaProblem problem =
      MakeDeltaProblem({.seq_len = 150, .gate = gate(), .resets = true, .max_beta = 2}, 30);
  ExpectSameAnswer(Answer(problem), RecurrenceAnswer(problem));
}

TEST_P(DeltaRuleTest, DocumentsOfRandomLengthsAreSeparate) {
  for (const uint64_t seed : {40, 50, 60}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const DeltaProblem problem = MakeDeltaProblem(
        {.seq_len = 150, .value_heads = 4, .gate = gate(), .resets = true, .documents = true},
        seed);
    ExpectSameAnswer(Answer(problem), RecurrenceAnswer(problem));
  }
}

// Returns the tokens [begin, end) of a row as a problem of their own, without an initial state.
DeltaProblem NarrowTokens(const DeltaProblem& whole, int64_t begin, int64_t end) {
  DeltaProblem part = whole;
  DeltaRuleInputs& in = part.inputs;
  for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay, &in.beta, &part.dout})
    if (x->defined()) *x = x->narrow(1, begin, end - begin);
  in.initial_state.reset(), in.chunks.reset(), part.starts.reset();
  part.dfinal_state = at::zeros_like(whole.dfinal_state);
  return part;
}

struct RowCut {
  std::vector<int64_t> document_starts;
  int64_t seq_len = 0;
};
// Cuts a row into documents of 1, 2, 63, 64 and 65 tokens, from an offset on, so that starts fall
// on every kind of place in a chunk.
RowCut CutRow(int64_t offset) {
  RowCut cut;
  int64_t position = offset;
  for (const int64_t length : {64, 1, 1, 2, 63, 65, 64, 2}) {
    cut.document_starts.push_back(position);
    position += length;
  }
  cut.seq_len = position;
  return cut;
}

TEST_P(DeltaRuleTest, PackedDocumentsEqualSeparateRows) {
  for (const int64_t offset : {0, 1, 2, 15, 16, 62, 63}) {
    SCOPED_TRACE(testing::Message() << "first start at " << offset);
    const RowCut cut = CutRow(offset);
    DeltaProblem problem =
        MakeDeltaProblem({.batch = 1, .seq_len = cut.seq_len, .gate = gate()}, 70 + offset);
    at::Tensor starts = at::zeros({1, cut.seq_len}, at::kBool);
    for (const int64_t start : cut.document_starts) starts.select(1, start).fill_(true);
    SetStarts(problem, starts);
    const DeltaAnswer got = Answer(problem);
    std::vector<int64_t> ends(cut.document_starts.begin() + 1, cut.document_starts.end());
    ends.push_back(cut.seq_len);
    for (size_t i = 0; i < ends.size(); ++i) {
      const int64_t begin = cut.document_starts[i], length = ends[i] - begin;
      DeltaProblem one = NarrowTokens(problem, begin, ends[i]);
      const bool is_last = i + 1 == ends.size();
      if (is_last) one.dfinal_state = problem.dfinal_state;
      DeltaAnswer part = got;
      for (at::Tensor DeltaAnswer::*field :
           {&DeltaAnswer::out, &DeltaAnswer::dq, &DeltaAnswer::dk, &DeltaAnswer::dv,
            &DeltaAnswer::dlog_decay, &DeltaAnswer::dbeta})
        if ((got.*field).defined()) part.*field = (got.*field).narrow(1, begin, length);
      DeltaAnswer want = Answer(one);
      if (!is_last) want.final_state.reset();
      ExpectSameAnswer(part, want);
    }
    // A control: without the starts the row gives another answer.
    problem.inputs.chunks.reset();
    EXPECT_FALSE(Close(Answer(problem).out, got.out, 1e-3));
  }
}

// Several sequences in one row, each with its own states; one of them is empty, and documents start
// inside two of them.
TEST_P(DeltaRuleTest, SequencesOfOneRowHaveTheirOwnStates) {
  const std::vector<int32_t> limits = {0, 20, 20, 90, 91, 161};
  const auto num_sequences = static_cast<int64_t>(limits.size()) - 1;
  const std::vector<int32_t> document_starts = {25, 85, 91};
  DeltaProblem problem = MakeDeltaProblem({.batch = 1, .seq_len = 161, .gate = gate()}, 80);
  const std::vector<int64_t> sizes = {num_sequences, 2, 6, 5};
  problem.inputs.initial_state = Normal(sizes, 81);
  problem.dfinal_state = Normal(sizes, 82);
  problem.inputs.chunks = MakeSequenceChunks(
      {.batch = 1, .seq_len = 161, .document_starts = document_starts, .cu_seqlens = limits},
      at::kCPU);
  const DeltaAnswer want = AnswerOf(problem, [&](const DeltaRuleInputs& in) -> DeltaRuleOutput {
    std::vector<at::Tensor> outs, states;
    for (int64_t n = 0; n < num_sequences; ++n) {
      const int64_t begin = limits[n], length = limits[n + 1] - begin;
      DeltaRuleInputs one = in;
      for (at::Tensor* x : {&one.q, &one.k, &one.v, &one.log_decay, &one.beta})
        if (x->defined()) *x = x->narrow(1, begin, length);
      one.initial_state = in.initial_state.narrow(0, n, 1);
      at::Tensor starts = at::zeros({1, length}, at::kBool);
      for (const int32_t start : document_starts)
        if (start >= begin && start < begin + length) starts.select(1, start - begin).fill_(true);
      const auto [out, state] = test::DeltaRecurrence(one, starts, problem.scale);
      outs.push_back(out), states.push_back(state);
    }
    return {.out = at::cat(outs, 1), .final_state = at::cat(states, 0)};
  });
  ExpectSameAnswer(Answer(problem), want);
}

// Returns the problem with all tensors in another type.
DeltaProblem ToStorage(DeltaProblem problem, at::ScalarType dtype) {
  DeltaRuleInputs& in = problem.inputs;
  for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay, &in.beta, &in.initial_state,
                        &problem.dout, &problem.dfinal_state})
    if (x->defined()) *x = x->to(dtype);
  return problem;
}

// Equal keys (a repeated token) make the powers of the triangular matrix grow like binomials, so
// that any way to invert it but substitution fails.
TEST_P(DeltaRuleTest, EqualKeysStayExact) {
  for (const double beta : {0.0, 1.0, 1.9, 2.0}) {
    SCOPED_TRACE(testing::Message() << "beta " << beta);
    DeltaProblem problem = MakeDeltaProblem({.seq_len = 200, .gate = gate()}, 90);
    problem.inputs.k = problem.inputs.k.narrow(1, 0, 1).expand_as(problem.inputs.k).contiguous();
    problem.inputs.beta = at::full_like(problem.inputs.beta, beta);
    if (problem.inputs.log_decay.defined())
      problem.inputs.log_decay = at::zeros_like(problem.inputs.log_decay);
    ExpectSameAnswer(Answer(problem), RecurrenceAnswer(problem));
    // In fp32 with beta = 2, where the state neither grows nor shrinks, the rounding of |k|^2 alone
    // changes it by 1e-7 per token. 64 tokens are the largest chunk.
    const DeltaProblem narrow = ToStorage(NarrowTokens(problem, 0, 64), at::kFloat);
    // The kernels sum dlog_decay over tokens and channels, and with equal keys most terms cancel.
    ExpectSameAnswer(Answer(narrow), RecurrenceAnswer(ToStorage(narrow, at::kDouble)),
                     {.outputs = 1e-5, .gradients = 1e-5, .dlog_decay = composed() ? 1e-5 : 5e-5});
  }
}

void ExpectRelativeErrors(const DeltaAnswer& got, const DeltaAnswer& want, double outputs,
                          double gradients) {
  EXPECT_LE(test::MeanError(got.out, want.out), outputs);
  EXPECT_LE(test::MeanError(got.final_state, want.final_state), outputs);
  EXPECT_LE(test::MeanError(got.dq, want.dq), gradients) << "dq";
  EXPECT_LE(test::MeanError(got.dk, want.dk), gradients) << "dk";
  EXPECT_LE(test::MeanError(got.dv, want.dv), gradients) << "dv";
  EXPECT_LE(test::MeanError(got.dbeta, want.dbeta), gradients) << "dbeta";
  if (want.dlog_decay.defined()) {
    EXPECT_LE(test::MeanError(got.dlog_decay, want.dlog_decay), gradients) << "dlog_decay";
  }
}

// fp32 and bf16 storage against fp64 on the same values.
TEST_P(DeltaRuleTest, NarrowTypesStayClose) {
  struct Case {
    at::ScalarType storage;
    double outputs, gradients;
  };
  for (const Case& one : {Case{at::kFloat, 2e-6, 5e-6}, Case{at::kBFloat16, 8e-3, 1.5e-2}}) {
    SCOPED_TRACE(at::toString(one.storage));
    DeltaProblem narrow = MakeDeltaProblem({.batch = 1,
                                            .seq_len = 2048,
                                            .heads = 1,
                                            .value_heads = 1,
                                            .dim_k = 32,
                                            .dim_v = 32,
                                            .gate = gate()},
                                           110, at::kFloat);
    DeltaRuleInputs& in = narrow.inputs;
    for (at::Tensor* x : {&in.q, &in.k, &in.v, &narrow.dout}) *x = x->to(one.storage);
    const DeltaAnswer got = Answer(narrow);
    EXPECT_EQ(got.out.scalar_type(), one.storage);
    EXPECT_EQ(got.final_state.scalar_type(), at::kFloat);
    ExpectRelativeErrors(got, Answer(ToStorage(narrow, at::kDouble)), one.outputs, one.gradients);
  }
}

// Changing token t leaves the outputs before t as they are, in bits.
TEST_P(DeltaRuleTest, IsCausal) {
  const DeltaProblem problem = MakeDeltaProblem({.seq_len = 150, .gate = gate()}, 120);
  const at::Tensor want = Rule(problem.inputs, 1).out;
  for (const int64_t t : {0, 1, 16, 63, 64, 100, 149}) {
    DeltaRuleInputs in = problem.inputs;
    for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay, &in.beta}) {
      if (!x->defined()) continue;
      *x = x->clone();
      x->select(1, t).mul_(0.5);
    }
    const at::Tensor got = Rule(in, 1).out;
    EXPECT_TRUE(BitEqual(got.narrow(1, 0, t), want.narrow(1, 0, t))) << t;
    EXPECT_FALSE(BitEqual(got.select(1, t), want.select(1, t))) << t;
  }
}

TEST_P(DeltaRuleTest, StepsAfterAPrefillEqualTheWhole) {
  const DeltaProblem problem =
      MakeDeltaProblem({.seq_len = 90, .value_heads = 4, .gate = gate(), .resets = true}, 130);
  const DeltaRuleInputs& in = problem.inputs;
  const auto [out, final_state] = Rule(in, problem.scale);
  for (const int64_t prefill : {0, 1, 64, 89}) {
    SCOPED_TRACE(testing::Message() << "prefill of " << prefill);
    DeltaProblem part = NarrowTokens(problem, 0, prefill);
    part.inputs.initial_state = in.initial_state;
    at::Tensor state = Rule(part.inputs, problem.scale).final_state.clone();
    for (int64_t t = prefill; t < 90; ++t) {
      const auto token = [&](const at::Tensor& x) { return x.defined() ? x.select(1, t) : x; };
      const DeltaRuleStepInputs step = {.q = token(in.q),
                                        .k = token(in.k),
                                        .v = token(in.v),
                                        .log_decay = token(in.log_decay),
                                        .beta = token(in.beta)};
      const at::Tensor one = composed() ? ComposedDeltaRuleStep(step, problem.scale, state)
                                        : DeltaRuleStep(step, problem.scale, state);
      EXPECT_TRUE(Close(one, out.select(1, t), 1e-12)) << t;
    }
    EXPECT_TRUE(Close(state, final_state, 1e-12));
  }
}

INSTANTIATE_TEST_SUITE_P(Gates, DeltaRuleTest,
                         testing::Combine(testing::Values(DeltaGate::kNone, DeltaGate::kPerHead,
                                                          DeltaGate::kPerChannel),
                                          testing::Bool()),
                         [](const auto& param) {
                           return test::ToString(std::get<0>(param.param)) +
                                  (std::get<1>(param.param) ? "Composed" : "Kernels");
                         });

// ---- routes ----

// Sizes beyond the kernels' limits use the LibTorch form.
TEST(DeltaRuleRoutes, WideHeadsAndLongChunksAreSupported) {
  DeltaProblem problem = MakeDeltaProblem(
      {.batch = 1, .seq_len = 20, .heads = 1, .value_heads = 1, .dim_k = 300}, 290);
  ExpectSameAnswer(DeltaRuleAnswer(problem), RecurrenceAnswer(problem));
  problem = MakeDeltaProblem({.seq_len = 130}, 291);
  problem.inputs.chunks =
      MakeSequenceChunks({.batch = 2, .seq_len = 130, .chunk_size = 100}, at::kCPU);
  ExpectSameAnswer(DeltaRuleAnswer(problem), RecurrenceAnswer(problem));
}

// On a GPU, the LibTorch form never makes the host wait.
TEST(DeltaRuleRoutes, TheLibTorchFormReadsNoValues) {
  for (const DeltaGate gate : {DeltaGate::kNone, DeltaGate::kPerHead, DeltaGate::kPerChannel}) {
    DeltaProblem problem = MakeDeltaProblem({.seq_len = 100, .gate = gate, .documents = true}, 295);
    HostWaits waits;
    AnswerOf(problem,
             [&](const DeltaRuleInputs& in) { return ComposedDeltaRule(in, problem.scale); });
    EXPECT_THAT(waits.Take()[""].waits, testing::IsEmpty());
  }
}

// ---- messages ----

TEST(DeltaRuleErrors, NameTheTensorAndTheFix) {
  const DeltaRuleInputs good = MakeDeltaProblem({.seq_len = 5, .value_heads = 4}, 300).inputs;
  const auto fails = [&](const auto& change, std::string piece, std::string fix) {
    DeltaRuleInputs in = good;
    change(in);
    EXPECT_HL_ERROR(DeltaRule(in, 1), ExitCode::kInternal, piece, fix);
  };
  fails([](auto& in) { in.v = in.v.select(0, 0); }, "delta rule: q [2, 5, 2, 6] fp64 on cpu",
        "Use q and k [B, T, H, K] and v [B, T, HV, V]");
  fails([](auto& in) { in.k = in.k.narrow(3, 0, 5); }, "do not match", "one shape for q and k");
  fails([](auto& in) { in.v = in.v.narrow(2, 0, 3); }, "v has 3 heads, which is not a multiple",
        "Use a multiple of it");
  fails([](auto& in) { in.beta = in.beta.to(at::kBFloat16); }, "beta [2, 5, 4] bf16",
        "Use [B, T, HV] fp64");
  fails([](auto& in) { in.log_decay = in.log_decay.narrow(1, 0, 4); }, "log_decay [2, 4, 4] fp64",
        "Use [B, T, HV] or [B, T, HV, K] fp64");
  fails([](auto& in) { in.initial_state = in.initial_state.narrow(0, 0, 1); },
        "initial_state [1, 4, 6, 5] fp64", "Use [sequences, HV, K, V], which is [2, 4, 6, 5]");
  fails([](auto& in) { in.chunks = MakeSequenceChunks({.batch = 2, .seq_len = 6}, at::kCPU); },
        "chunks were made for another batch", "Make them for these inputs");
}

TEST(DeltaRuleErrors, OfSteps) {
  const DeltaRuleInputs in = MakeDeltaProblem({.seq_len = 1, .value_heads = 4}, 310).inputs;
  const DeltaRuleStepInputs good = {.q = in.q.select(1, 0),
                                    .k = in.k.select(1, 0),
                                    .v = in.v.select(1, 0),
                                    .log_decay = in.log_decay.select(1, 0),
                                    .beta = in.beta.select(1, 0)};
  at::Tensor state = in.initial_state.to(at::kFloat);
  EXPECT_HL_ERROR(DeltaRuleStep(good, 1, state), ExitCode::kInternal,
                  "delta rule step: state [2, 4, 6, 5] fp32",
                  "Use a contiguous [B, HV, K, V] fp64");
  state = in.initial_state.clone();
  DeltaRuleStepInputs bad = good;
  bad.beta.reset();
  EXPECT_HL_ERROR(DeltaRuleStep(bad, 1, state), ExitCode::kInternal, "beta undefined",
                  "Use [B, HV] fp64");
  bad = good, bad.log_decay = good.log_decay.unsqueeze(2);
  EXPECT_HL_ERROR(DeltaRuleStep(bad, 1, state), ExitCode::kInternal, "log_decay [2, 4, 1] fp64",
                  "Use [B, HV] or [B, HV, K] fp64");
  bad = good, bad.v = good.v.narrow(1, 0, 3);
  EXPECT_HL_ERROR(DeltaRuleStep(bad, 1, state), ExitCode::kInternal, "do not match",
                  "a multiple of their heads for v");
  bad = good, bad.q = in.q;
  EXPECT_HL_ERROR(DeltaRuleStep(bad, 1, state), ExitCode::kInternal, "q [2, 1, 2, 6] fp64",
                  "Use q and k [B, H, K] and v [B, HV, V]");
}

}  // namespace
}  // namespace halflife::ops
