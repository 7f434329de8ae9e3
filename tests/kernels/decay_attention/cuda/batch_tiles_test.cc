// If the rows of a batch are processed in batch tiles that share one workspace, the emulated
// kernels equal the oracle, and have the bits of a run without tiles.
#include <vector>

#include "kernels/decay_attention/cuda/expect.h"
#include "kernels/decay_attention/same_bits.h"
#include "support/expect_error.h"

namespace halflife::kernels::test {
namespace {

constexpr DecayKind kKinds[] = {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                DecayKind::kPerToken, DecayKind::kPerTokenChannel};

// Returns five rows in batch tiles of 1, 2 and 2, with 2 x 2 slices, shared heads, and initial and
// final states.
ProblemShape InTurns(DecayKind kind) {
  return {.batch = 5,
          .seq_len = kSlow ? 17 : 70,
          .heads = 2,
          .dim_k = 72,
          .dim_v = 72,
          .kind = kind,
          .q_heads = 1,
          .v_heads = 1,
          .key_scale = true,
          .odd_strides = true,
          .batch_tiles = 3,
          .block = {64, 64}};
}

TEST(CudaBatchTiles, EveryKind) {
  for (const DecayKind kind : kKinds) {
    if (kSlow && !IsPerToken(kind)) continue;
    ExpectGradients(InTurns(kind));
  }
}

TEST(CudaBatchTiles, SegmentsAndDocuments) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerTokenChannel}) {
    ProblemShape shape = InTurns(kind);
    shape.seq_len = 140;
    shape.num_segments = 2;
    shape.document_starts = {100, 140, 190, 390, 500, 699};
    ExpectGradients(shape);
  }
}

TEST(CudaBatchTiles, Normalised) {
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerToken}) {
    if (kSlow && !IsPerToken(kind)) continue;
    ProblemShape shape = InTurns(kind);
    shape.norm = true;
    shape.v_mean = 4;
    ExpectGradients(shape);
    if (kSlow || kind != DecayKind::kPerHeadChannel) continue;
    shape.seq_len = 140;
    shape.num_segments = 2;
    shape.document_starts = {100, 250, 699};
    ExpectGradients(shape);
  }
}

TEST(CudaBatchTiles, TokenByToken) {
  for (const DecayKind kind : kKinds) {
    if (kSlow && !IsPerToken(kind)) continue;
    for (const bool norm : {false, true}) {
      ProblemShape shape = InTurns(kind);
      shape.seq_len = 17;
      shape.dtype = DType::kF32;
      shape.simt = true;
      shape.norm = norm;
      ExpectGradients(shape);
    }
  }
}

// Only the sum of a constant decay's gradient has terms of two rows. Its terms are added after the
// last tile.
TEST(CudaBatchTiles, ChangeNoBit) {
  if (kSanitized) GTEST_SKIP() << "adds no access that other tests do not make";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerTokenChannel})
    for (const bool norm : {false, true})
      for (const bool simt : {false, true}) {
        ProblemShape shape = InTurns(kind);
        shape.seq_len = 20;
        shape.norm = norm;
        shape.simt = simt;
        SCOPED_TRACE(shape.Name());
        std::vector<Result> results;
        for (const int batch_tiles : {1, 3}) {
          shape.batch_tiles = batch_tiles;
          Problem problem(shape);
          problem.Forward(/*with_checkpoints=*/true);
          problem.Backward();
          results.push_back(problem.Collect(/*backward=*/true));
        }
        ExpectSameBits(results[1], results[0]);
      }
}

TEST(CudaBatchTiles, ShareOneWorkspace) {
  ProblemShape shape = InTurns(DecayKind::kPerToken);
  shape.batch = 4;
  shape.seq_len = 64;
  const auto bytes = [&](int batch_tiles) {
    shape.batch_tiles = batch_tiles;
    Problem problem(shape);
    return cuda::BackwardWorkspaceBytes(problem.Args(), problem.Plan());
  };
  EXPECT_EQ(bytes(2), bytes(1) / 2);
  EXPECT_EQ(bytes(4), bytes(1) / 4);
}

TEST(CudaBatchTiles, MoreThanRows) {
  Problem problem({.batch = 2, .seq_len = 10, .heads = 1, .batch_tiles = 3});
  EXPECT_HL_ERROR(problem.Forward(), ExitCode::kUsage,
                  "in 3 batch tiles: a batch of 2 with 2 sequences has 1 to 2 of them");
}

TEST(CudaBatchTiles, PackedSequences) {
  Problem problem({.seq_len = 10, .heads = 1, .batch_tiles = 2, .cu_seqlens = {0, 4, 10}});
  EXPECT_HL_ERROR(problem.Forward(), ExitCode::kUsage,
                  "in 2 batch tiles: a batch of 1 with 2 sequences has 1 to 1 of them");
}

}  // namespace
}  // namespace halflife::kernels::test
