// Decay attention's CUDA kernels write their workspace and checkpoints up to the planned size and
// not beyond it, in the emulator. (In other tests, whose buffers have exactly this size,
// AddressSanitizer checks the same.)
#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

// A buffer that is followed by bytes that must not be written.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : data_(bytes + 4096, std::byte{0xff}), bytes_(bytes) {}
  void* get() { return data_.data(); }
  bool intact() const {
    return std::all_of(data_.begin() + static_cast<std::ptrdiff_t>(bytes_), data_.end(),
                       [](std::byte x) { return x == std::byte{0xff}; });
  }

 private:
  std::vector<std::byte> data_;
  size_t bytes_;
};

void ExpectWithinBounds(const ProblemShape& shape) {
  SCOPED_TRACE(shape.Name());
  Problem problem(shape);
  const DecayAttentionPlan plan = problem.Plan();
  DecayAttentionArgs args = problem.Args();
  Guarded forward(ForwardWorkspaceBytes(args, plan)), backward(BackwardWorkspaceBytes(args, plan)),
      checkpoints(CheckpointBytes(args, plan));
  args.workspace = forward.get();
  args.checkpoints = checkpoints.get();
  cuda::Forward(args, plan, nullptr);
  EXPECT_TRUE(forward.intact()) << "the forward's workspace";
  EXPECT_TRUE(checkpoints.intact()) << "checkpoints";
  DecayAttentionGradArgs grads = problem.GradArgs();
  grads.forward.workspace = backward.get();
  grads.forward.checkpoints = checkpoints.get();
  cuda::Backward(grads, plan, nullptr);
  EXPECT_TRUE(backward.intact()) << "the backward's workspace";
  EXPECT_TRUE(checkpoints.intact()) << "checkpoints, by the backward";
  ExpectClose(shape, problem.Compare(true));

  if (shape.norm) return;  // Summaries have none.
  Guarded states(problem.final_state_.size() * sizeof(float));
  DecaySegmentArgs summary;
  summary.forward = args;
  summary.state = states.get();
  cuda::Summarise(summary, plan, nullptr);
  summary.forward.workspace = backward.get();
  summary.dout = grads.dout;
  cuda::BackwardSummarise(summary, plan, nullptr);
  EXPECT_TRUE(forward.intact() && backward.intact() && states.intact()) << "summaries";
}

// Returns sizes that fill no tile. Shared heads and a constant decay have partial sums in the
// workspace.
ProblemShape Ragged(DecayKind kind, int num_segments) {
  ProblemShape shape = {.batch = 2, .seq_len = 333, .heads = 2, .dim_k = 44, .dim_v = 52};
  shape.kind = kind;
  shape.q_heads = shape.k_heads = shape.v_heads = shape.decay_heads = 1;
  shape.num_segments = num_segments;
  return shape;
}

TEST(CudaBounds, Scans) {
  if (kSanitized) GTEST_SKIP() << "in every other test the address sanitizer sees as much";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken,
                               DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel})
    for (const int segments : {1, 2}) ExpectWithinBounds(Ragged(kind, segments));
}

TEST(CudaBounds, FullTiles) {
  if (kSanitized) GTEST_SKIP() << "in every other test the address sanitizer sees as much";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    ExpectWithinBounds(
        {.seq_len = 512, .heads = 1, .dim_k = 128, .dim_v = 128, .kind = kind, .num_segments = 2});
}

TEST(CudaBounds, PackedSequences) {
  if (kSanitized) GTEST_SKIP() << "in every other test the address sanitizer sees as much";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    ExpectWithinBounds({.seq_len = 333,
                        .heads = 1,
                        .kind = kind,
                        .num_segments = 2,
                        .cu_seqlens = {0, 0, 63, 64, 200, 333}});
}

// Slices of K and V have partial sums, and one more with the normalizer.
TEST(CudaBounds, Slices) {
  if (kSanitized) GTEST_SKIP() << "in every other test the address sanitizer sees as much";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken,
                               DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel})
    for (const bool norm : {false, true})
      ExpectWithinBounds({.seq_len = 300,
                          .heads = DecayHeads(kind),
                          .dim_k = 68,
                          .dim_v = 132,
                          .kind = kind,
                          .norm = norm,
                          .key_scale = true,
                          .num_segments = 2,
                          .block = {64, 64}});
}

TEST(CudaBounds, TokenByToken) {
  if (kSanitized) GTEST_SKIP() << "in every other test the address sanitizer sees as much";
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerToken})
    for (const bool norm : {false, true}) {
      ProblemShape shape = Ragged(kind, 1);
      shape.seq_len = 70;
      shape.dtype = DType::kF32;
      shape.simt = true;
      shape.norm = norm;
      shape.key_scale = true;
      ExpectWithinBounds(shape);
    }
}

// The forward runs on tensor cores and could write checkpoints. The backward does not run there and
// needs none.
TEST(CudaBounds, BackwardWithoutCheckpoints) {
  if (kSanitized) GTEST_SKIP() << "in every other test the address sanitizer sees as much";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    ExpectWithinBounds({.seq_len = 70, .heads = 1, .kind = kind, .simt_backward = true});
}

}  // namespace
}  // namespace halflife::kernels::test
