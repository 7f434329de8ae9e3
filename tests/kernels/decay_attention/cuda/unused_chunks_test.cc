// In every kernel family, a table with unused entries gives the bits of one without. A recorded
// CUDA graph has such a table, because it is replayed for rows with other documents.
#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

Result GradientsWith(ProblemShape shape, int unused_chunks) {
  shape.unused_chunks = unused_chunks;
  Problem problem(shape);
  problem.Forward(/*with_checkpoints=*/true);
  problem.Backward();
  return problem.Collect(/*backward=*/true);
}

void ExpectUnusedChunksChangeNothing(const ProblemShape& shape) {
  SCOPED_TRACE(shape.Name());
  ExpectSameBits(GradientsWith(shape, 13), GradientsWith(shape, 0));
}

// Returns two rows with documents that start within them. Heads share operands and decays.
ProblemShape Packed(DecayKind kind) {
  ProblemShape shape = {.batch = 2, .seq_len = kSlow ? 70 : 150, .heads = 2, .kind = kind};
  shape.k_heads = shape.decay_heads = 1;
  shape.key_scale = kind != DecayKind::kNone;
  shape.document_starts = {0, 10, 64, shape.seq_len, shape.seq_len + 1};
  return shape;
}

TEST(CudaUnusedChunks, ByWarpsAndWarpgroups) {
  for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                               DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const bool warpgroups : {false, true}) {
      if (kSlow && !IsPerChannel(kind)) continue;
      ProblemShape shape = Packed(kind);
      shape.warpgroups = warpgroups;
      ASSERT_EQ(Problem(shape).Plan().backward_warpgroups, warpgroups);
      ExpectUnusedChunksChangeNothing(shape);
    }
}

TEST(CudaUnusedChunks, SegmentsAndBatchTiles) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerHeadChannel}) {
    for (const bool warpgroups : {false, true}) {
      ProblemShape shape = Packed(kind);
      shape.warpgroups = warpgroups;
      shape.num_segments = shape.batch_tiles = 2;
      ExpectUnusedChunksChangeNothing(shape);
    }
  }
}

TEST(CudaUnusedChunks, InFp32) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerHeadChannel}) {
    ProblemShape shape = Packed(kind);
    shape.dtype = DType::kF32;
    ExpectUnusedChunksChangeNothing(shape);
  }
}

TEST(CudaUnusedChunks, NormalisedAndRecurrent) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ProblemShape shape = Packed(DecayKind::kPerHead);
  shape.norm = true;
  ExpectUnusedChunksChangeNothing(shape);
  shape.simt = true;
  ExpectUnusedChunksChangeNothing(shape);
}

}  // namespace
}  // namespace halflife::kernels::test
