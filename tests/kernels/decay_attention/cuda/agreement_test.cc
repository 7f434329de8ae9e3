// For each kind of decay, the emulated CUDA kernels, the CPU kernels and the oracle agree on one
// problem.
#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

// Runs the CPU kernels on a problem's memory.
void RunOnCpu(Problem& problem) {
  DecayAttentionGradArgs grads = problem.GradArgs();
  DecayAttentionArgs& args = grads.forward;
  const DecayAttentionPlan plan = MakePlan(args, DeviceLimits{}, {.chunk_size = 64});
  std::vector<std::byte> workspace(
      std::max(ForwardWorkspaceBytes(args, plan), BackwardWorkspaceBytes(args, plan))),
      checkpoints(CheckpointBytes(args, plan));
  args.workspace = workspace.data();
  args.checkpoints = checkpoints.data();
  cpu::Forward(args, plan);
  cpu::Backward(grads, plan);
}

// Compares CUDA with the CPU within the bounds of CUDA against the oracle. The CPU's fp32 operands
// need no larger ones.
void ExpectAgreement(const ProblemShape& shape) {
  SCOPED_TRACE(shape.Name());
  Problem on_cuda(shape), on_cpu(shape);
  on_cuda.Forward(/*with_checkpoints=*/true);
  on_cuda.Backward();
  RunOnCpu(on_cpu);
  ExpectClose(shape, on_cuda.Compare(true));
  ExpectClose(shape, on_cpu.Compare(true));
  const Result cuda = on_cuda.Collect(true), cpu = on_cpu.Collect(true);
  for (const auto& [name, values] : cuda) {
    ASSERT_EQ(values.size(), cpu.at(name).size()) << name;
    Errors errors;
    for (size_t i = 0; i < values.size(); ++i) errors.Add(values[i], cpu.at(name)[i]);
    EXPECT_LE(errors.Rms(), Gate(shape, name)) << name;
  }
}

TEST(CudaAgreement, OneProblemOfEachKind) {
  for (const auto& [dtype, simt] : kOperandRoutes)
    for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                 DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
      ProblemShape shape = {.batch = 2, .seq_len = 75, .heads = 2, .dim_k = 40, .dim_v = 72};
      shape.kind = kind;
      shape.dtype = dtype;
      shape.simt = simt;
      shape.q_heads = shape.k_heads = shape.decay_heads = 1;
      shape.key_scale = true;
      shape.document_starts = {20, 75, 139};
      ExpectAgreement(shape);
    }
}

// The largest heads, in slices of K and V. A few tokens suffice, because a state and a chunk exist
// from the first token on.
TEST(CudaAgreement, WideHeadsOfEachKind) {
  for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                               DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    ExpectAgreement({.seq_len = 20,
                     .heads = DecayHeads(kind),
                     .dim_k = 256,
                     .dim_v = 512,
                     .kind = kind,
                     .key_scale = true});
}

}  // namespace
}  // namespace halflife::kernels::test
