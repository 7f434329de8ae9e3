// What sequence parallelism rests on: a sequence cut into segments, each handled on its own with the state that the fold
// of the earlier ones gives it, is the whole sequence, forward and backward.
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include "kernels/decay_attention/tensor_problem.h"

namespace halflife::kernels {
namespace {

using test::Close;
using test::DecayProblem;
using test::MakeProblem;
using test::Oracle;

constexpr int64_t kSeqLen = 150;
const std::vector<int64_t> kCuts = {0, 37, 38, 102, 150};  // uneven, and a segment of one token
constexpr double kTolerance = 5e-6;                        // fp32, as for the whole

DecayAttentionInputs Cut(const DecayProblem& whole, int64_t begin, int64_t end) {
  DecayAttentionInputs part = whole.inputs;
  for (at::Tensor* x : {&part.q, &part.k, &part.v}) *x = x->narrow(1, begin, end - begin);
  if (whole.starts.defined())
    part.chunks = test::ChunksOf(whole.starts.narrow(1, begin, end - begin));
  if (part.log_decay.dim() > 1) part.log_decay = part.log_decay.narrow(1, begin, end - begin);
  part.initial_state = at::Tensor();
  return part;
}

class DecaySegmentsTest : public testing::TestWithParam<std::tuple<DecayKind, bool>> {
 protected:
  DecaySegmentsTest()
      : problem_(MakeProblem({.seq_len = kSeqLen,
                              .kind = std::get<0>(GetParam()),
                              .documents = std::get<1>(GetParam())},
                             7, at::kFloat)) {
    for (size_t i = 0; i + 1 < kCuts.size(); ++i)
      segments_.push_back(Cut(problem_, kCuts[i], kCuts[i + 1]));
  }
  at::Tensor DoutOf(size_t i) const {
    return problem_.dout.narrow(1, kCuts[i], kCuts[i + 1] - kCuts[i]);
  }
  static at::Tensor Transition(const DecaySegment& segment) {
    return segment.log_transition.exp().unsqueeze(3);  // [B, H, K or 1, 1]
  }
  // State before each segment, and after the last, by folding the summaries.
  std::vector<at::Tensor> FoldStates() const {
    std::vector<at::Tensor> states = {problem_.inputs.initial_state};
    for (const DecayAttentionInputs& segment : segments_) {
      const DecaySegment summary = Summarise(segment, problem_.config);
      states.push_back(Transition(summary) * states.back() + summary.state);
    }
    return states;
  }

  DecayProblem problem_;
  std::vector<DecayAttentionInputs> segments_;
};

TEST_P(DecaySegmentsTest, FoldOfSummariesIsTheWhole) {
  const auto want = Oracle(problem_).output;
  const std::vector<at::Tensor> states = FoldStates();
  EXPECT_TRUE(Close(states.back(), want.final_state, kTolerance));
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < segments_.size(); ++i) {
    segments_[i].initial_state = states[i];
    outs.push_back(DecayAttention(segments_[i], problem_.config).out);
  }
  EXPECT_TRUE(Close(at::cat(outs, 1), want.out, kTolerance));
}

TEST_P(DecaySegmentsTest, BackwardOfSegmentsIsTheWhole) {
  const auto want = Oracle(problem_).grads;
  const std::vector<at::Tensor> states = FoldStates();
  std::vector<at::Tensor> dq, dk, dv, dlog_decay;
  at::Tensor dstate = problem_.dfinal_state;  // dL/d(state after the segment)
  for (size_t i = segments_.size(); i-- > 0;) {
    DecayAttentionInputs segment = segments_[i];
    const DecaySegment summary = Summarise(segment, problem_.config);
    const at::Tensor local = BackwardSummarise(segment, problem_.config, DoutOf(i));
    segment.initial_state = states[i];
    const auto grads = Backward(segment, problem_.config, DoutOf(i), dstate);
    dq.insert(dq.begin(), grads.dq);
    dk.insert(dk.begin(), grads.dk);
    dv.insert(dv.begin(), grads.dv);
    dlog_decay.insert(dlog_decay.begin(), grads.dlog_decay);
    dstate = Transition(summary) * dstate + local;
    EXPECT_TRUE(Close(dstate, grads.dinitial_state, kTolerance)) << "segment " << i;
  }
  EXPECT_TRUE(Close(dstate, want.dinitial_state, kTolerance));
  EXPECT_TRUE(Close(at::cat(dq, 1), want.dq, kTolerance));
  EXPECT_TRUE(Close(at::cat(dk, 1), want.dk, kTolerance));
  EXPECT_TRUE(Close(at::cat(dv, 1), want.dv, kTolerance));
  // a constant decay's gradient is the sum over segments
  const bool constant = want.dlog_decay.dim() == 1;
  EXPECT_TRUE(Close(constant ? at::stack(dlog_decay).sum(0) : at::cat(dlog_decay, 1),
                    want.dlog_decay, kTolerance));
}

INSTANTIATE_TEST_SUITE_P(All, DecaySegmentsTest,
                         testing::Combine(testing::Values(DecayKind::kPerHead, DecayKind::kPerToken,
                                                          DecayKind::kPerTokenChannel),
                                          testing::Bool()));

// A segment with a document start forgets what was before it.
TEST(DecaySegmentSummary, StartClosesTheTransition) {
  DecayProblem problem = MakeProblem({.seq_len = 20}, 8, at::kFloat);
  problem.starts = at::zeros({2, 20}, at::kBool);
  problem.starts.select(0, 1).select(0, 5).fill_(true);
  problem.inputs.chunks = test::ChunksOf(problem.starts);
  const at::Tensor log_transition = Summarise(problem.inputs, problem.config).log_transition;
  EXPECT_TRUE(log_transition.select(0, 0).isfinite().all().item<bool>());
  EXPECT_TRUE(log_transition.select(0, 1).isneginf().all().item<bool>());
}

}  // namespace
}  // namespace halflife::kernels
