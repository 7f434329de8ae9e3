// Offsets that do not fit into 32 bits, in elements or in bytes of bf16: every route of the
// emulated CUDA kernels gives the bits of a dense problem.
#include <limits>

#include "kernels/decay_attention/cuda/expect.h"
#include "kernels/decay_attention/cuda/launch.h"
#include "kernels/decay_attention/far_slots.h"
#include "kernels/decay_attention/late_tokens.h"
#include "support/expect_error.h"

namespace halflife::kernels::test {
namespace {

// ThreadSanitizer's address space is too small, and index arithmetic has no races.
#define SKIP_IF_SLOW() \
  if (kSlow) GTEST_SKIP() << "indices are no races"

Problem Run(ProblemShape shape, bool far, bool backward) {
  shape.far = far;
  Problem problem(shape);
  problem.Forward(backward);
  if (backward) problem.Backward();
  return problem;
}
void ExpectFarIsDense(const ProblemShape& shape, bool backward = true) {
  SCOPED_TRACE(shape.Name());
  ExpectSameBits(Run(shape, false, backward).Collect(backward),
                 Run(shape, true, backward).Collect(backward));
}

TEST(CudaFar, RowsOfTensorCoreScans) {
  SKIP_IF_SLOW();
  ProblemShape shape = {.batch = 2, .seq_len = 66, .heads = 2, .dim_k = 24, .dim_v = 40};
  shape.key_scale = true;
  ExpectFarIsDense(shape);
  shape.odd_strides = true;
  shape.k_heads = 1;  // Partial gradients are summed into the distant rows.
  ExpectFarIsDense(shape);
}

TEST(CudaFar, RowsOfSegments) {
  SKIP_IF_SLOW();
  ExpectFarIsDense({.seq_len = 100, .heads = 2, .dim_k = 16, .dim_v = 24, .num_segments = 2});
}

TEST(CudaFar, RowsOfChannelScans) {
  SKIP_IF_SLOW();
  ExpectFarIsDense({.batch = 2,
                    .seq_len = 66,
                    .heads = 2,
                    .dim_k = 24,
                    .dim_v = 40,
                    .kind = DecayKind::kPerTokenChannel});
}

TEST(CudaFar, RowsTokenByToken) {
  SKIP_IF_SLOW();
  ProblemShape shape = {.batch = 2, .seq_len = 66, .heads = 2, .dim_k = 20, .dim_v = 33};
  shape.dtype = DType::kF32;
  shape.simt = shape.norm = shape.key_scale = true;
  ExpectFarIsDense(shape);
}

// Expects the same bits at the end of a row of 2^31 - 1 tokens as in a short row. The per-token
// backward is excluded, because it sums slices over all tokens.
void ExpectLateIsDense(const ProblemShape& shape, bool backward) {
  SCOPED_TRACE(shape.Name());
  Problem problem(shape);
  const DecayAttentionPlan plan = problem.Plan();
  DecayAttentionArgs args = problem.Args();
  DecayAttentionGradArgs grads = problem.GradArgs();
  LateTokens late(args, grads, problem.table_);
  std::vector<std::byte> workspace(backward ? cuda::BackwardWorkspaceBytes(args, plan)
                                            : cuda::ForwardWorkspaceBytes(args, plan));
  std::vector<std::byte> checkpoints(cuda::CheckpointBytes(args, plan));
  args.workspace = workspace.data();
  args.checkpoints = backward ? checkpoints.data() : nullptr;
  cuda::Forward(args, plan, nullptr);
  grads.forward = args;
  if (backward) cuda::Backward(grads, plan, nullptr);
  late.CopyBack();
  const Problem dense = Run(shape, false, backward);
  ExpectSameBits(dense.Collect(backward), problem.Collect(backward));
  if (shape.norm) {
    EXPECT_EQ(dense.denom_, problem.denom_);
  }
}

TEST(CudaFar, LateTokens) {
  SKIP_IF_SLOW();
  ProblemShape shape = {.seq_len = 70, .heads = 2, .dim_k = 16, .dim_v = 24};
  shape.key_scale = true;
  ExpectLateIsDense(shape, true);
  shape.kind = DecayKind::kPerTokenChannel;
  ExpectLateIsDense(shape, false);
  shape.dtype = DType::kF32;
  ExpectLateIsDense(shape, false);
  shape.simt = shape.norm = true;
  ExpectLateIsDense(shape, false);
}

// Both rows of a batch decode: once with the first two slots of the states, once with a slot at the
// end of a large address range.
TEST(CudaFar, SlotsOfAStep) {
  SKIP_IF_SLOW();
  ProblemShape shape = {.batch = 2, .seq_len = 1, .heads = 2, .dim_k = 16, .dim_v = 24};
  shape.norm = shape.key_scale = true;
  Values outs[2];
  std::vector<float> after[2];
  for (const bool far : {false, true}) {
    shape.far = far;
    Problem problem(shape);
    const DecayAttentionStepArgs step = problem.StepArgs();
    const SlotStates states(step, problem.initial_state_, problem.initial_norm_,
                            far ? FarSlot(step) : 1);
    cuda::Step(states.step(), nullptr);
    outs[far] = problem.answer_.out.Get();
    after[far] = states.Get();
  }
  EXPECT_EQ(outs[0], outs[1]);
  EXPECT_EQ(after[0], after[1]);
}

// A grid that would wrap around to a few blocks, or to none, is refused before anything is
// launched.
TEST(CudaFar, MoreBlocksThanALaunchTakes) {
  const ProblemShape shape = {.seq_len = 1, .heads = 1, .dim_k = 16, .dim_v = 16};
  Problem problem(shape);
  DecayAttentionStepArgs step = problem.StepArgs();
  step.state = problem.initial_state_.data();
  step.batch = std::numeric_limits<int>::max();
  step.num_heads = 4;
  step.out.stride_h = shape.dim_v;
  step.out.stride_b = step.num_heads * step.out.stride_h;
  EXPECT_HL_ERROR(cuda::Step(step, nullptr), ExitCode::kUsage, "decay attention step",
                  "8589934588 blocks", "2147483647");
  decay::ReduceHeadsParams sum = {};
  sum.batch = sum.num_out_heads = sum.num_heads = 1;
  sum.seq_len = std::numeric_limits<int>::max();
  sum.dim = 1024;  // Each thread has four of them.
  EXPECT_HL_ERROR(decay::LaunchReduceHeads(sum, nullptr), ExitCode::kUsage,
                  "decay attention sum over heads", "4294967294 blocks", "Split the batch");
}

}  // namespace
}  // namespace halflife::kernels::test
