// The basis of sequence parallelism: if a sequence is split over ranks, and each rank starts from
// the state that the summaries of earlier ranks give, the result equals that of the whole sequence,
// forward and backward.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "ops/decay_attention/tensor_problem.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using test::Close;
using test::DecayProblem;
using test::MakeProblem;
using test::Oracle;

constexpr int64_t kSeqLen = 150;
// For 1, 2, 3 and 8 ranks: uneven, with slices of one token.
const std::vector<std::vector<int64_t>> kCuts = {
    {0, 150}, {0, 63, 150}, {0, 37, 38, 150}, {0, 1, 20, 40, 64, 65, 100, 129, 150}};

bool IsConstant(const at::Tensor& log_decay) { return log_decay.defined() && log_decay.dim() <= 2; }

ops::DecayAttentionInputs Cut(const DecayProblem& whole, int64_t begin, int64_t end) {
  ops::DecayAttentionInputs part = whole.inputs;
  std::vector<at::Tensor*> rows = {&part.q, &part.k, &part.v, &part.key_scale};
  if (!IsConstant(part.log_decay)) rows.push_back(&part.log_decay);
  for (at::Tensor* x : rows)
    if (x->defined()) *x = x->narrow(1, begin, end - begin);
  if (whole.starts.defined())
    part.chunks = test::ChunksOf(whole.starts.narrow(1, begin, end - begin));
  part.initial_state = {};
  return part;
}

// Simulates the ranks of a run in one process.
class Ranks {
 public:
  Ranks(const DecayProblem& problem, const std::vector<int64_t>& cuts)
      : problem_(problem), cuts_(cuts) {
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      segments_.push_back(Cut(problem, cuts[i], cuts[i + 1]));
      summaries_.push_back(ops::Summarise(segments_.back(), problem.config));
    }
    ops::DecayState state = problem.inputs.initial_state;  // An exclusive scan.
    for (size_t i = 0; i < segments_.size(); ++i) {
      segments_[i].initial_state = state;
      state = ops::PassThrough(summaries_[i], state);
    }
    last_ = state;
  }

  ops::DecayAttentionOutput Forward() const {
    std::vector<at::Tensor> outs;
    for (const ops::DecayAttentionInputs& segment : segments_)
      outs.push_back(ops::DecayAttention(segment, problem_.config).out);
    return {.out = at::cat(outs, 1), .final_state = last_};
  }

  ops::DecayAttentionGrads Backward() const {
    const size_t count = segments_.size();
    std::vector<ops::DecayState> after(count);  // dL/d(state after each rank), by a reverse scan.
    ops::DecayState dstate = problem_.dfinal_state;
    for (size_t i = count; i-- > 0;) {
      after[i] = dstate;
      dstate = ops::PassThrough(
          {.log_transition = summaries_[i].log_transition,
           .state = ops::BackwardSummarise(segments_[i], problem_.config, DoutOf(i))},
          dstate);
    }
    std::vector<ops::DecayAttentionGrads> parts;
    for (size_t i = 0; i < count; ++i)
      parts.push_back(ops::Backward(segments_[i], problem_.config, DoutOf(i), after[i]));
    ops::DecayAttentionGrads grads = Join(parts);
    grads.dinitial_state = dstate;
    return grads;
  }

 private:
  at::Tensor DoutOf(size_t i) const {
    return problem_.dout.narrow(1, cuts_[i], cuts_[i + 1] - cuts_[i]);
  }
  // Joins the gradients of tokens. The gradient of a constant decay is the sum over ranks.
  ops::DecayAttentionGrads Join(const std::vector<ops::DecayAttentionGrads>& parts) const {
    const auto all = [&](at::Tensor ops::DecayAttentionGrads::*field) {
      std::vector<at::Tensor> tensors;
      for (const ops::DecayAttentionGrads& part : parts) tensors.push_back(part.*field);
      return tensors;
    };
    ops::DecayAttentionGrads grads = {.dq = at::cat(all(&ops::DecayAttentionGrads::dq), 1),
                                      .dk = at::cat(all(&ops::DecayAttentionGrads::dk), 1),
                                      .dv = at::cat(all(&ops::DecayAttentionGrads::dv), 1),
                                      .dlog_decay = {}};
    const auto dlog_decay = all(&ops::DecayAttentionGrads::dlog_decay);
    if (problem_.inputs.log_decay.defined())
      grads.dlog_decay = IsConstant(problem_.inputs.log_decay) ? at::stack(dlog_decay).sum(0)
                                                               : at::cat(dlog_decay, 1);
    if (problem_.inputs.key_scale.defined())
      grads.dkey_scale = at::cat(all(&ops::DecayAttentionGrads::dkey_scale), 1);
    return grads;
  }

  const DecayProblem& problem_;
  const std::vector<int64_t>& cuts_;
  std::vector<ops::DecayAttentionInputs> segments_;
  std::vector<ops::DecaySegment> summaries_;
  ops::DecayState last_;
};

class DecaySegmentsTest
    : public testing::TestWithParam<std::tuple<DecayKind, bool, bool, at::ScalarType>> {
 protected:
  DecaySegmentsTest()
      : problem_(MakeProblem({.seq_len = kSeqLen,
                              .dim_k = 12,
                              .dim_v = 20,
                              .kind = std::get<0>(GetParam()),
                              .documents = std::get<1>(GetParam()),
                              .normalised = std::get<2>(GetParam()),
                              .key_scale = std::get<2>(GetParam())},
                             7, std::get<3>(GetParam()))) {}
  // The tolerance of a whole sequence.
  double tolerance() const { return std::get<3>(GetParam()) == at::kDouble ? 1e-12 : 5e-6; }

  DecayProblem problem_;
};

TEST_P(DecaySegmentsTest, ForwardOfRanksIsTheWhole) {
  const auto want = Oracle(problem_).output;
  for (const std::vector<int64_t>& cuts : kCuts) {
    SCOPED_TRACE(testing::Message() << cuts.size() - 1 << " ranks");
    test::ExpectSameOutput(Ranks(problem_, cuts).Forward(), want, tolerance());
  }
}

TEST_P(DecaySegmentsTest, BackwardOfRanksIsTheWhole) {
  const auto want = Oracle(problem_).grads;
  const auto one = Ranks(problem_, kCuts[0]).Backward();
  for (const std::vector<int64_t>& cuts : kCuts) {
    SCOPED_TRACE(testing::Message() << cuts.size() - 1 << " ranks");
    const auto grads = Ranks(problem_, cuts).Backward();
    test::ExpectSameGrads(grads, want, tolerance());
    test::ExpectSameGrads(grads, one, tolerance());
  }
}

// The gradient of the state before a rank equals that of the rank's own backward.
TEST_P(DecaySegmentsTest, BackwardSummaryIsTheBackwardOfOneSegment) {
  problem_.dfinal_state = {};
  const ops::DecayState got =
      ops::BackwardSummarise(problem_.inputs, problem_.config, problem_.dout);
  test::ExpectSameState(
      got, Backward(problem_.inputs, problem_.config, problem_.dout, {}).dinitial_state,
      tolerance(), "dinitial_state");
}

INSTANTIATE_TEST_SUITE_P(All, DecaySegmentsTest,
                         testing::Combine(testing::Values(DecayKind::kNone, DecayKind::kPerHead,
                                                          DecayKind::kPerHeadChannel,
                                                          DecayKind::kPerToken,
                                                          DecayKind::kPerTokenChannel),
                                          testing::Bool(), testing::Bool(),
                                          testing::Values(at::kFloat, at::kDouble)));

// A segment with a document start does not use the state before it.
TEST(DecaySegmentSummary, StartClosesTheTransition) {
  DecayProblem problem = MakeProblem({.seq_len = 20}, 8, at::kFloat);
  problem.starts = at::zeros({2, 20}, at::kBool);
  problem.starts.select(0, 1).select(0, 5).fill_(true);
  problem.inputs.chunks = test::ChunksOf(problem.starts);
  const at::Tensor log_transition = ops::Summarise(problem.inputs, problem.config).log_transition;
  EXPECT_TRUE(log_transition.select(0, 0).isfinite().all().item<bool>());
  EXPECT_TRUE(log_transition.select(0, 1).isneginf().all().item<bool>());
}

TEST(DecaySegmentSummary, ClosedTransitionPassesNoNan) {
  const at::Tensor own = test::Normal({1, 2, 3, 4}, 9, at::kFloat);
  const at::Tensor nan = at::full_like(own, std::nan("")), closed = at::full({1, 2, 1}, -INFINITY);
  const ops::DecayState after =
      ops::PassThrough({.log_transition = closed, .state = {.kv = own}}, {.kv = nan});
  EXPECT_TRUE(test::BitEqual(after.kv, own));
  const at::Tensor open = at::zeros({1, 2, 1});
  EXPECT_TRUE(ops::PassThrough({.log_transition = open, .state = {.kv = own}}, {.kv = nan})
                  .kv.isnan()
                  .all()
                  .item<bool>());
}

TEST(DecaySegmentSummary, CarriesNoLogScale) {
  DecayProblem problem = MakeProblem({.seq_len = 5, .normalised = true}, 9, at::kFloat);
  problem.config.allow_growth = true;
  const char* const want = "the summary of a segment carries no log scale";
  EXPECT_HL_ERROR(ops::Summarise(problem.inputs, problem.config), ExitCode::kUsage, want,
                  "log_decay <= 0 without allow_growth");
  EXPECT_HL_ERROR(ops::BackwardSummarise(problem.inputs, problem.config, problem.dout),
                  ExitCode::kUsage, want);
}

}  // namespace
}  // namespace halflife::kernels
