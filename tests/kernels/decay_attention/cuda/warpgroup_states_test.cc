// States with wgmma in the emulator: summaries of segments equal those with mma.sync, which
// other tests compare with the oracle, and gradients over several segments equal the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernels/decay_attention/cuda/expect.h"
#include "tools/cuda_emulator/counts.h"

namespace halflife::kernels::test {
namespace {

ProblemShape StatesByWarpgroups(ProblemShape shape) {
  shape.warpgroups = true;
  return shape;
}

// The state contract of a segment in both directions.
struct Summary {
  std::vector<float> state, log_transition, reverse_state;
  int64_t wgmma = 0;  // number of products with wgmma
};
Summary SummaryOf(Problem& problem) {
  DecaySegmentArgs args;
  args.forward = problem.Args();
  const DecayAttentionPlan plan = problem.Plan();
  const size_t owners = size_t{1} * args.forward.num_sequences * args.forward.num_heads;
  const float unset = std::nanf("");
  Summary summary;
  summary.state.assign(problem.final_state_.size(), unset);
  summary.reverse_state = summary.state;
  summary.log_transition.assign(owners, unset);
  const int64_t before = emu::CountsSoFar().wgmma;
  std::vector<std::byte> workspace(SummaryWorkspaceBytes(args.forward, plan), std::byte{0xff});
  args.forward.workspace = workspace.data();
  args.state = summary.state.data();
  args.log_transition = summary.log_transition.data();
  cuda::Summarise(args, plan, nullptr);
  workspace.assign(ReverseSummaryWorkspaceBytes(args.forward, plan), std::byte{0xff});
  args.forward.workspace = workspace.data();
  args.dout = problem.dout_.view();
  args.state = summary.reverse_state.data();
  args.log_transition = nullptr;
  cuda::BackwardSummarise(args, plan, nullptr);
  summary.wgmma = emu::CountsSoFar().wgmma - before;
  return summary;
}
Summary SummaryOf(const ProblemShape& shape) {
  Problem problem(shape);
  return SummaryOf(problem);
}

double RelativeRms(const std::vector<float>& got, const std::vector<float>& want) {
  Errors errors;
  for (size_t i = 0; i < want.size(); ++i) errors.Add(got[i], want[i]);
  return errors.Rms();
}
// Compares the summaries of both routes. They round the same operands, so only the order of sums
// within 16 tokens differs.
void ExpectSummariesOfBothRoutes(const ProblemShape& shape) {
  SCOPED_TRACE(shape.Name());
  const Summary want = SummaryOf(shape), got = SummaryOf(StatesByWarpgroups(shape));
  EXPECT_EQ(want.wgmma, 0);
  EXPECT_GT(got.wgmma, 0);
  EXPECT_EQ(got.log_transition, want.log_transition);
  EXPECT_LE(RelativeRms(got.state, want.state), 1e-6);
  EXPECT_LE(RelativeRms(got.reverse_state, want.reverse_state), 1e-6);
}

TEST(CudaWarpgroupStates, AnyLength) {
  for (const int seq_len : Lengths())
    if (!kSlow || seq_len == 65) ExpectSummariesOfBothRoutes({.seq_len = seq_len, .heads = 1});
}

// 64 chunks and 65 chunks: each of the four stages is used 16 times.
TEST(CudaWarpgroupStates, RowsOfThousandsOfTokens) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  for (const int seq_len : {4096, 4150, 4160})
    for (const int segments : {1, 4})
      ExpectSummariesOfBothRoutes({.seq_len = seq_len, .heads = 1, .num_segments = segments});
}

TEST(CudaWarpgroupStates, KindsAndSlices) {
  if (kSlow) GTEST_SKIP() << "one instance is enough for races";
  for (const HeadDims& dims : {HeadDims{64, 128}, {128, 64}, {256, 128}})
    for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerToken})
      ExpectSummariesOfBothRoutes({.seq_len = 200,
                                   .heads = DecayHeads(kind),
                                   .dim_k = dims.k,
                                   .dim_v = dims.v,
                                   .kind = kind,
                                   .key_scale = kind != DecayKind::kNone,
                                   .num_segments = 2});
}

TEST(CudaWarpgroupStates, AdversarialDecays) {
  if (kSlow) GTEST_SKIP() << "one instance is enough for races";
  for (const Strength strength : kAdversarial)
    ExpectSummariesOfBothRoutes({.seq_len = 300, .heads = 2, .strength = strength});
}

TEST(CudaWarpgroupStates, SharedHeads) {
  ProblemShape shape = {.batch = 2, .seq_len = kSlow ? 70 : 200, .heads = 4};
  shape.q_heads = 2;
  shape.k_heads = 1;
  shape.v_heads = 2;
  shape.decay_heads = 1;
  ExpectSummariesOfBothRoutes(shape);
}

TEST(CudaWarpgroupStates, DocumentsAndPackedSequences) {
  if (kSlow) GTEST_SKIP() << "one instance is enough for races";
  for (const int segments : {1, 3}) {
    ExpectSummariesOfBothRoutes({.batch = 2,
                                 .seq_len = 600,
                                 .heads = 1,
                                 .num_segments = segments,
                                 .document_starts = {100, 257, 700, 1100}});
    ExpectSummariesOfBothRoutes(
        {.seq_len = 600, .heads = 1, .num_segments = segments, .cu_seqlens = {0, 0, 64, 70, 600}});
  }
}

TEST(CudaWarpgroupStates, GradientsOverSegmentsEqualTheOracle) {
  for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerToken}) {
    if (kSlow && kind != DecayKind::kPerToken) continue;
    ProblemShape shape = StatesByWarpgroups({.seq_len = kSlow ? 300 : 520,
                                             .heads = DecayHeads(kind),
                                             .dim_v = 128,
                                             .kind = kind,
                                             .key_scale = true,
                                             .num_segments = 3});
    ExpectGradients(shape);
    if (kSlow || kind != DecayKind::kPerHead) continue;
    shape.document_starts = {100, 257, 500};
    ExpectGradients(shape);
  }
  if (kSlow) return;
  ExpectGradients(StatesByWarpgroups(
      {.seq_len = 600, .heads = 1, .num_segments = 2, .cu_seqlens = {0, 0, 64, 70, 600}}));
  ExpectGradients(StatesByWarpgroups(
      {.batch = 3, .seq_len = 520, .heads = 1, .num_segments = 2, .batch_tiles = 2}));
}

// A bulk copy also reads the rows that follow a short chunk: here, those of another sequence.
TEST(CudaWarpgroupStates, TokensAfterAChunkHaveNoEffect) {
  ProblemShape shape = StatesByWarpgroups({.seq_len = 100, .heads = 1, .key_scale = true});
  shape.cu_seqlens = {0, 40, 100};
  Problem clean(shape), poisoned(shape);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Tensor* x : {&poisoned.q_, &poisoned.k_, &poisoned.v_, &poisoned.dout_})
    for (int c = 0; c < x->width(); ++c) x->Set(0, 40, 0, c, nan);
  const Summary want = SummaryOf(clean), got = SummaryOf(poisoned);
  const size_t state = want.state.size() / 2;  // of one sequence
  for (size_t i = 0; i < state; ++i) {
    ASSERT_EQ(got.state[i], want.state[i]) << i;
    ASSERT_EQ(got.reverse_state[i], want.reverse_state[i]) << i;
  }
  EXPECT_TRUE(std::isnan(got.state[state]) && std::isnan(got.reverse_state[state]));
}

TEST(CudaWarpgroupStates, TwoRunsAgreeInEveryBit) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  ExpectTwoRunsAgreeInEveryBit(
      StatesByWarpgroups({.seq_len = 520, .heads = 1, .dim_v = 128, .num_segments = 2}));
}

// The other heads are scanned with mma.sync. Rows of dout that bulk copies cannot read matter only
// in reverse.
TEST(CudaWarpgroupStates, TakeWhatFillsTheirBlocks) {
  const auto wgmma = [](ProblemShape shape) {
    shape.seq_len = 20;
    shape.heads = 1;
    return SummaryOf(StatesByWarpgroups(shape)).wgmma;
  };
  EXPECT_GT(wgmma({.dim_k = 256, .dim_v = 384}), 0);
  EXPECT_EQ(wgmma({.dim_k = 96}), 0);
  EXPECT_EQ(wgmma({.dim_v = 200}), 0);
  EXPECT_EQ(wgmma({.odd_strides = true}), 0);

  const ProblemShape shape = {.seq_len = 20, .heads = 1};
  Problem by_warps(shape), odd(StatesByWarpgroups(shape));
  odd.dout_ = Tensor({1, shape.seq_len, 1, 64}, DType::kBF16, {.padding = 3});
  odd.dout_.Set(by_warps.dout_.Get());
  const Summary want = SummaryOf(by_warps), got = SummaryOf(odd);
  EXPECT_EQ(got.reverse_state, want.reverse_state);
  EXPECT_EQ(got.wgmma, SummaryOf(StatesByWarpgroups(shape)).wgmma / 2);
}

}  // namespace
}  // namespace halflife::kernels::test
