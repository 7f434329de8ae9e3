// Sequence parallelism for the delta rule: a row that is split over ranks gives the outputs and the
// gradients of the whole row.
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>

#include <memory>
#include <utility>

#include "dist/local_communicator.h"
#include "model/sequence_parallel.h"
#include "ops/delta_rule/delta_problem.h"
#include "ops/delta_rule/delta_rule_internal.h"
#include "ops/torch/autograd.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using dist::Communicator;
using dist::LocalWorld;
using test::Close;
using test::DeltaAnswer;
using test::DeltaGate;
using test::DeltaProblem;
using test::MakeDeltaProblem;

constexpr int64_t kSeqLen = 150;

// Returns the tokens of one rank.
DeltaProblem SliceOf(const DeltaProblem& whole, int64_t begin, int64_t length) {
  DeltaProblem part = whole;
  DeltaRuleInputs& in = part.inputs;
  for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay, &in.beta, &part.dout})
    if (x->defined()) *x = x->narrow(1, begin, length);
  in.initial_state.reset(), in.chunks.reset(), part.starts.reset();
  if (whole.starts.defined()) SetStarts(part, whole.starts.narrow(1, begin, length).contiguous());
  return part;
}

struct CutOptions {
  std::vector<int64_t> lengths;
  StateStrategy strategy = StateStrategy::kGather;
  bool forget_starts = false;  // a mistake: no rank reports its document starts
};

// Runs every rank in a thread and joins their answers.
DeltaAnswer OverRanks(const DeltaProblem& whole, const CutOptions& options) {
  std::vector<DeltaAnswer> ranks(options.lengths.size());
  LocalWorld::Run(static_cast<int>(ranks.size()), [&](Communicator& comm) {
    RowSegment row = {.group = model::MakeSegmentGroup(comm),
                      .lengths = options.lengths,
                      .first_position = {},
                      .strategy = options.strategy};
    DeltaProblem own = SliceOf(whole, row.begin(), options.lengths[comm.rank()]);
    if (own.starts.defined() && !options.forget_starts) row.has_start = own.starts.any(1);
    if (options.forget_starts) own.inputs.chunks.reset();
    own.inputs.segment = std::make_shared<const RowSegment>(row);
    ranks[comm.rank()] = test::DeltaRuleAnswer(own);
    row.group->Settle();
  });
  DeltaAnswer joined;
  for (at::Tensor DeltaAnswer::*field :
       {&DeltaAnswer::out, &DeltaAnswer::dq, &DeltaAnswer::dk, &DeltaAnswer::dv,
        &DeltaAnswer::dlog_decay, &DeltaAnswer::dbeta}) {
    if (!(ranks[0].*field).defined()) continue;
    std::vector<at::Tensor> parts;
    for (const DeltaAnswer& rank : ranks) parts.push_back(rank.*field);
    joined.*field = at::cat(parts, 1);
  }
  return joined;
}

// Returns the answer of whole rows without an initial state and without a gradient of the final
// one.
DeltaAnswer WholeRows(const DeltaProblem& problem) {
  DeltaProblem whole = problem;
  whole.inputs.initial_state.reset();
  whole.dfinal_state = at::zeros_like(problem.dfinal_state);
  DeltaAnswer answer = test::RecurrenceAnswer(whole);
  answer.final_state.reset();
  return answer;
}

const std::vector<std::vector<int64_t>>& Cuts() {
  static const std::vector<std::vector<int64_t>> cuts = {
      {150}, {64, 86}, {149, 1}, {0, 150}, {37, 1, 60, 52}, {70, 0, 79, 1}, {1, 64, 0, 85}};
  return cuts;
}

class DeltaSegmentsTest : public testing::TestWithParam<std::tuple<DeltaGate, bool>> {
 protected:
  DeltaProblem Problem(uint64_t seed) const {
    return MakeDeltaProblem({.seq_len = kSeqLen,
                             .value_heads = 4,
                             .gate = std::get<0>(GetParam()),
                             .max_beta = 2,
                             .documents = std::get<1>(GetParam())},
                            seed);
  }
};

TEST_P(DeltaSegmentsTest, RanksGiveWhatWholeRowsGive) {
  const DeltaProblem problem = Problem(400);
  const DeltaAnswer want = WholeRows(problem);
  for (const std::vector<int64_t>& lengths : Cuts()) {
    SCOPED_TRACE(testing::PrintToString(lengths));
    ExpectSameAnswer(OverRanks(problem, {.lengths = lengths}), want);
  }
}

TEST_P(DeltaSegmentsTest, StrategiesGiveTheSameBits) {
  const DeltaProblem problem = Problem(410);
  const std::vector<int64_t> lengths = {37, 1, 60, 52};
  const DeltaAnswer want = OverRanks(problem, {.lengths = lengths});
  for (const StateStrategy strategy : {StateStrategy::kRing, StateStrategy::kScan}) {
    const DeltaAnswer got = OverRanks(problem, {.lengths = lengths, .strategy = strategy});
    EXPECT_TRUE(test::BitEqual(got.out, want.out));
    EXPECT_TRUE(test::BitEqual(got.dk, want.dk));
    EXPECT_TRUE(test::BitEqual(got.dbeta, want.dbeta));
  }
}

// The summaries of slices describe the states: M S + N. Those of the kernels equal those of the
// LibTorch form.
TEST_P(DeltaSegmentsTest, SummariesComposeToTheFinalState) {
  const DeltaProblem problem = Problem(420);
  const at::Tensor want =
      test::DeltaRecurrence(problem.inputs, problem.starts, problem.scale).final_state;
  for (const std::vector<int64_t>& lengths : Cuts()) {
    SCOPED_TRACE(testing::PrintToString(lengths));
    at::Tensor state = problem.inputs.initial_state;
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      const DeltaRuleInputs slice = SliceOf(problem, begin, length).inputs;
      const auto [transition, own] = KernelDeltaRuleSummary(slice);
      const DeltaRuleSummary composed = ComposedDeltaRuleSummary(slice);
      EXPECT_TRUE(Close(transition, composed.transition, 1e-12));
      EXPECT_TRUE(Close(own, composed.state, 1e-12));
      state = at::matmul(transition, state) + own;
      begin += length;
    }
    EXPECT_TRUE(Close(state, want, 1e-12));
  }
}

// The gradient of the state before a slice, which the kernels compute without that state.
TEST_P(DeltaSegmentsTest, AdjointIsTheBackwardOfOneSlice) {
  DeltaProblem problem = Problem(425);
  problem.dfinal_state = at::zeros_like(problem.dfinal_state);
  const at::Tensor want = test::RecurrenceAnswer(problem).dinitial_state;
  EXPECT_TRUE(
      Close(KernelDeltaRuleAdjoint(problem.inputs, problem.scale, problem.dout), want, 1e-12));
}

INSTANTIATE_TEST_SUITE_P(All, DeltaSegmentsTest,
                         testing::Combine(testing::Values(DeltaGate::kNone, DeltaGate::kPerHead,
                                                          DeltaGate::kPerChannel),
                                          testing::Bool()));

// The LibTorch form, which GPUs use, for heads that the kernels do not support.
TEST(DeltaSegmentRoutes, WideHeadsAreSplitAcrossRanks) {
  const DeltaProblem problem = MakeDeltaProblem({.batch = 1,
                                                 .seq_len = kSeqLen,
                                                 .heads = 1,
                                                 .value_heads = 2,
                                                 .dim_k = 260,
                                                 .max_beta = 2,
                                                 .documents = true},
                                                427);
  ASSERT_FALSE(HasDeltaRuleKernels(problem.inputs));
  ExpectSameAnswer(OverRanks(problem, {.lengths = {37, 0, 53, 60}}), WholeRows(problem));
}

TEST(DeltaSegmentSummary, AStartClosesTheTransition) {
  DeltaProblem problem = MakeDeltaProblem({.seq_len = 70, .gate = DeltaGate::kNone}, 430);
  at::Tensor starts = at::zeros({2, 70}, at::kBool);
  starts.select(0, 1).select(0, 64).fill_(true);
  SetStarts(problem, starts);
  const at::Tensor transition = ComposedDeltaRuleSummary(problem.inputs).transition;
  EXPECT_TRUE((transition.select(0, 1) == 0).all().item<bool>());
  EXPECT_GT(transition.select(0, 0).abs().max().item<double>(), 1e-8);
}

// Two controls: mistakes that the comparison with whole rows must notice.
TEST(DeltaSegmentControls, AStateThatCrossesADocumentIsNoticed) {
  const DeltaProblem problem =
      MakeDeltaProblem({.seq_len = kSeqLen, .gate = DeltaGate::kNone, .documents = true}, 440);
  const DeltaAnswer got = OverRanks(problem, {.lengths = {37, 53, 60}, .forget_starts = true});
  EXPECT_FALSE(Close(got.out, WholeRows(problem).out, 1e-3));
}

TEST(DeltaSegmentControls, ATransitionOnTheWrongSideIsNoticed) {
  const DeltaProblem problem = MakeDeltaProblem(
      {.seq_len = 12, .dim_k = 4, .dim_v = 4, .gate = DeltaGate::kPerChannel}, 450);
  const at::Tensor want =
      test::DeltaRecurrence(problem.inputs, problem.starts, problem.scale).final_state;
  const auto [transition, own] = ComposedDeltaRuleSummary(problem.inputs);
  const at::Tensor& before = problem.inputs.initial_state;
  EXPECT_TRUE(Close(at::matmul(transition, before) + own, want, 1e-12));
  EXPECT_FALSE(Close(at::matmul(before, transition) + own, want, 1e-3));
  EXPECT_FALSE(Close(at::matmul(transition.transpose(2, 3), before) + own, want, 1e-3));
}

TEST(DeltaSegmentErrors, RefuseStatesAndSequences) {
  LocalWorld::Run(1, [&](Communicator& comm) {
    DeltaProblem problem = MakeDeltaProblem({.batch = 1, .seq_len = 8}, 460);
    problem.inputs.segment = std::make_shared<const RowSegment>(
        RowSegment{.group = model::MakeSegmentGroup(comm), .lengths = {8}, .first_position = {}});
    EXPECT_HL_ERROR(DeltaRule(problem.inputs, 1), ExitCode::kInternal,
                    "delta rule: a segment with an initial state", "Pass no state");
    problem.inputs.initial_state.reset();
    const std::vector<int32_t> limits = {0, 3, 8};
    problem.inputs.chunks =
        MakeSequenceChunks({.batch = 1, .seq_len = 8, .cu_seqlens = limits}, at::kCPU);
    EXPECT_HL_ERROR(DeltaRule(problem.inputs, 1), ExitCode::kInternal,
                    "a segment with 2 sequences in 1 rows", "Use document_starts");
  });
}

}  // namespace
}  // namespace halflife::ops
