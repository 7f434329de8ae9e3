// Segments of sequences that are scanned in parallel, and the summaries that ranks exchange, in the
// emulator.
#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

TEST(CudaSegment, AnyNumberGivesTheSame) {
  for (const int segments : {1, 2, 3}) {
    if (kSlow && segments != 2) continue;
    ExpectGradients({.seq_len = kSlow ? 300 : 600, .heads = 1, .num_segments = segments});
  }
}

// More than the scan over segments loads at once. With 42 columns of V, it cannot load four
// elements of one channel together.
TEST(CudaSegment, MoreThanAreLoadedAtOnce) {
  if (kSlow) GTEST_SKIP() << "one instance is enough for races";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const int dim_v : {40, 42})
      ExpectGradients({.seq_len = 2600,
                       .heads = 1,
                       .dim_k = 24,
                       .dim_v = dim_v,
                       .kind = kind,
                       .num_segments = 10});
}

TEST(CudaSegment, InstancesAndKinds) {
  if (kSlow) GTEST_SKIP() << "one instance is enough for races";
  for (const int dim : {100, 60})
    for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerToken})
      ExpectGradients({.seq_len = 300,
                       .heads = 1,
                       .dim_k = dim,
                       .dim_v = 160 - dim,
                       .kind = kind,
                       .num_segments = 2});
}

TEST(CudaSegment, BlocksOf128ColumnsOfV) {
  if (kSlow) GTEST_SKIP() << "one instance is enough for races";
  for (const int dim_k : {40, 128})
    ExpectGradients({.seq_len = 300,
                     .heads = 1,
                     .dim_k = dim_k,
                     .dim_v = 100,
                     .num_segments = 2,
                     .block_v = 128});
}

TEST(CudaSegment, DecaysOfChannels) {
  const DecayKind kind = DecayKind::kPerTokenChannel;
  if (kSlow) {
    ExpectGradients({.seq_len = 160, .heads = 1, .kind = kind, .num_segments = 2});
    return;
  }
  for (const int segments : {2, 3})
    ExpectGradients({.seq_len = 600, .heads = 1, .kind = kind, .num_segments = segments});
  for (const int dim : {100, 60})
    ExpectGradients({.seq_len = 200,
                     .heads = 1,
                     .dim_k = dim,
                     .dim_v = 160 - dim,
                     .kind = DecayKind::kPerHeadChannel,
                     .num_segments = 2});
  for (const Strength strength : {Strength::kNearOne, Strength::kStrong, Strength::kResets})
    ExpectGradients(
        {.seq_len = 300, .heads = 1, .kind = kind, .strength = strength, .num_segments = 2});
  ExpectGradients({.batch = 2,
                   .seq_len = 600,
                   .heads = 1,
                   .kind = kind,
                   .key_scale = true,
                   .odd_strides = true,
                   .num_segments = 3,
                   .document_starts = {0, 100, 257, 700, 1100}});
  ExpectGradients({.seq_len = 600,
                   .heads = 1,
                   .dim_v = 128,
                   .kind = kind,
                   .num_segments = 2,
                   .block_v = 64,
                   .cu_seqlens = {0, 0, 64, 70, 600}});
}

// A constant decay's gradient has more partial sums than a warp has lanes, from several heads, rows
// and segments.
TEST(CudaSegment, ManyPiecesOfAConstantDecay) {
  if (kSlow) GTEST_SKIP() << "one instance is enough for races";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerHeadChannel}) {
    ProblemShape shape = {.batch = 5, .seq_len = 300, .heads = 8, .dim_k = 24, .dim_v = 24};
    shape.kind = kind;
    shape.decay_heads = 2;
    shape.num_segments = 2;
    shape.states = false;  // With few draws, gradients may cancel by chance.
    ExpectGradients(shape);
    ExpectTwoRunsAgreeInEveryBit(shape);
  }
}

// Each direction may have too few blocks, independently of the other.
TEST(CudaSegment, EachDirectionHasItsOwnNumber) {
  if (kSlow) GTEST_SKIP() << "one instance is enough for races";
  for (const DecayKind kind :
       {DecayKind::kPerHeadChannel, DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const bool norm : {false, true}) {
      ProblemShape shape = {.seq_len = 600, .heads = 1, .dim_k = 24, .dim_v = 40, .kind = kind};
      shape.norm = norm;
      shape.document_starts = {300};
      shape.num_segments = 1, shape.backward_segments = 3;
      ExpectGradients(shape);
      shape.num_segments = 3, shape.backward_segments = 1;
      ExpectGradients(shape);
    }
}

TEST(CudaSegment, DocumentsAndPackedSequences) {
  if (kSlow) GTEST_SKIP() << "one instance is enough for races";
  ExpectGradients({.batch = 2,
                   .seq_len = 600,
                   .heads = 1,
                   .num_segments = 3,
                   .document_starts = {0, 100, 257, 700, 1100}});
  ExpectGradients(
      {.seq_len = 600, .heads = 1, .num_segments = 2, .cu_seqlens = {0, 0, 64, 70, 600}});
}

// Expects that a segment's summary is consistent with a whole scan: S_out = exp(log_transition)
// S_in + state.
void ExpectSummaries(ProblemShape shape) {
  SCOPED_TRACE(shape.Name());
  Problem problem(shape);
  problem.Forward(true);
  DecaySegmentArgs args;
  args.forward = problem.Args();
  const DecayAttentionPlan plan = problem.Plan();
  std::vector<std::byte> workspace(SummaryWorkspaceBytes(args.forward, plan), std::byte{0xff});
  args.forward.workspace = workspace.data();
  const bool per_channel = IsPerChannel(shape.kind);
  const size_t owners = size_t(shape.batch) * shape.heads;
  std::vector<float> state(problem.final_state_.size());
  std::vector<float> log_transition(owners * (per_channel ? shape.dim_k : 1));
  std::vector<float> norm(problem.final_norm_.size());
  args.state = state.data();
  args.norm = norm.data();
  args.log_transition = log_transition.data();
  cuda::Summarise(args, plan, nullptr);
  Errors errors;
  for (size_t i = 0; i < state.size(); ++i) {
    const size_t owner = i / shape.dim_v / (per_channel ? 1 : shape.dim_k);
    errors.Add(std::exp(log_transition[owner]) * problem.initial_state_[i] + state[i],
               problem.final_state_[i]);
  }
  for (size_t i = 0; shape.norm && i < norm.size(); ++i)
    errors.Add(
        std::exp(log_transition[per_channel ? i : i / shape.dim_k]) * problem.initial_norm_[i] +
            norm[i],
        problem.final_norm_[i]);
  EXPECT_LE(errors.Rms(), Gate(shape, "final_state"));
  // A document start also ends the sum of log decays, which the states do not show far from the
  // start.
  for (size_t i = 0; i < log_transition.size(); ++i)
    EXPECT_EQ(std::isinf(log_transition[i]), !shape.document_starts.empty()) << i;

  std::fill(problem.dfinal_state_.begin(), problem.dfinal_state_.end(), 0.0f);
  std::fill(problem.dfinal_norm_.begin(), problem.dfinal_norm_.end(), 0.0f);
  problem.Backward();
  args.dout = problem.dout_.view();
  args.log_transition = nullptr;
  workspace.assign(ReverseSummaryWorkspaceBytes(args.forward, plan), std::byte{0xff});
  args.forward.workspace = workspace.data();
  cuda::BackwardSummarise(args, plan, nullptr);
  Errors reverse;
  for (size_t i = 0; i < state.size(); ++i) reverse.Add(state[i], problem.dinitial_state_[i]);
  for (size_t i = 0; shape.norm && i < norm.size(); ++i)
    reverse.Add(norm[i], problem.dinitial_norm_[i]);
  EXPECT_LE(reverse.Rms(), Gate(shape, "final_state"));
}

TEST(CudaSegment, SummariesCompose) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const int segments : {1, 2})
    ExpectSummaries({.seq_len = 300, .heads = 2, .num_segments = segments});
  ExpectSummaries({.seq_len = 300, .heads = 1, .document_starts = {100}});
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel}) {
    for (const int segments : {1, 2})
      ExpectSummaries({.seq_len = 300, .heads = 2, .kind = kind, .num_segments = segments});
  }
  ExpectSummaries(
      {.seq_len = 300, .heads = 1, .kind = DecayKind::kPerTokenChannel, .document_starts = {100}});
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const int segments : {1, 2})
      ExpectSummaries({.seq_len = 300,
                       .heads = 1,
                       .kind = kind,
                       .dtype = DType::kF32,
                       .num_segments = segments});
}

TEST(CudaSegment, SummariesOfSlicesAndOfTheNormaliserCompose) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const int segments : {1, 2})
      ExpectSummaries({.seq_len = 300,
                       .heads = 1,
                       .dim_k = 72,
                       .dim_v = 72,
                       .kind = kind,
                       .norm = segments == 2,
                       .key_scale = true,
                       .num_segments = segments,
                       .block = {64, 64}});
}

// A decay of 0 in a later segment removes everything before it, including a NaN.
TEST(CudaSegment, ZeroDecayClosesTheTransition) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  Problem problem({.seq_len = 600, .heads = 1, .num_segments = 2});
  problem.decay_.Set(0, 3, 0, 0, NAN);
  problem.decay_.Set(0, 590, 0, 0, -INFINITY);
  DecaySegmentArgs args;
  args.forward = problem.Args();
  const DecayAttentionPlan plan = problem.Plan();
  std::vector<std::byte> workspace(SummaryWorkspaceBytes(args.forward, plan));
  args.forward.workspace = workspace.data();
  std::vector<float> state(problem.final_state_.size());
  float log_transition = 0;
  args.state = state.data();
  args.log_transition = &log_transition;
  cuda::Summarise(args, plan, nullptr);
  EXPECT_EQ(log_transition, -INFINITY);
}

// Channels for two warps, tokens for two chunks.
TEST(CudaSegment, SummariesTokenByTokenCompose) {
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel})
    for (const bool norm : {false, true})
      ExpectSummaries({.seq_len = 70,
                       .heads = 1,
                       .dim_k = 40,
                       .dim_v = 40,
                       .kind = kind,
                       .dtype = DType::kF32,
                       .norm = norm,
                       .simt = true});
}

}  // namespace
}  // namespace halflife::kernels::test
