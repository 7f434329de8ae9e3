// The tensor-core reverse scan with decays per channel equals the oracle, in the emulator.
#include <cmath>

#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

TEST(CudaChannelReverseScan, AnyLengthAndKind) {
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel})
    for (const int seq_len : Lengths()) {
      if (kSlow && (seq_len != 65 || kind == DecayKind::kPerHeadChannel)) continue;
      ExpectGradients({.seq_len = seq_len, .heads = 1, .kind = kind});
    }
}

TEST(CudaChannelReverseScan, GroupsOfChunksMeetAtTheirCheckpoints) {
  if (kSlow) GTEST_SKIP() << "the sizes are those of other tests";
  for (const int seq_len : {128, 129, 256, 259})
    ExpectGradients({.seq_len = seq_len, .heads = 1, .kind = DecayKind::kPerTokenChannel});
}

TEST(CudaChannelReverseScan, EveryInstanceWithPaddedHeads) {
  for (const int dim_k : {24, 60, 100, 128})
    for (const int dim_v : {40, 64, 100, 128}) {
      if (kSlow && dim_k + dim_v != 200) continue;
      ExpectGradients({.seq_len = kSlow ? 20 : 80,
                       .heads = 1,
                       .dim_k = dim_k,
                       .dim_v = dim_v,
                       .kind = DecayKind::kPerTokenChannel});
    }
}

// Operands and outputs keep 8 bits for all decays, so the bounds do not depend on them.
TEST(CudaChannelReverseScan, AdversarialDecays) {
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel})
    for (const Strength strength : kAdversarial) {
      if (kSlow && (strength != Strength::kResets || kind == DecayKind::kPerHeadChannel)) continue;
      ExpectGradients(
          {.seq_len = kSlow ? 70 : 150, .heads = 1, .kind = kind, .strength = strength});
    }
}

TEST(CudaChannelReverseScan, GrowthUpToSixtyAChunk) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel})
    ExpectGradients({.seq_len = 64, .heads = 1, .kind = kind, .strength = Strength::kGrowth});
}

TEST(CudaChannelReverseScan, InfiniteDecayHasNoGradient) {
  Problem problem({.seq_len = 70,
                   .heads = 1,
                   .kind = DecayKind::kPerTokenChannel,
                   .strength = Strength::kResets});
  problem.Forward(true);
  problem.Backward();
  int infinite = 0;
  for (int t = 0; t < 70; ++t)
    for (int c = 0; c < 64; ++c) {
      if (!std::isinf(problem.decay_.Get(0, t, 0, c))) continue;
      ++infinite;
      EXPECT_EQ(problem.answer_.dlog_decay.Get(0, t, 0, c), 0) << t << ", " << c;
    }
  EXPECT_GT(infinite, 100);
}

TEST(CudaChannelReverseScan, SharedHeadsAndRowsThatNoVectorLoadTakes) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ProblemShape shape = {.batch = 2, .seq_len = 70, .heads = 4, .dim_k = 37, .dim_v = 70};
  shape.q_heads = shape.v_heads = 2;
  shape.k_heads = shape.decay_heads = 1;
  shape.key_scale = shape.odd_strides = true;
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel}) {
    shape.kind = kind;
    shape.block_v = 64;  // The backward reads the checkpoints of all slices of the forward.
    ExpectGradients(shape);
  }
}

// The distance between tokens does not determine whether all rows of the batch can be copied in
// units of 16 bytes.
TEST(CudaChannelReverseScan, RowsThatStartWhereNoVectorLoadDoes) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ExpectGradients({.batch = 2,
                   .seq_len = 20,
                   .heads = 1,
                   .kind = DecayKind::kPerTokenChannel,
                   .between_rows = 3});
}

TEST(CudaChannelReverseScan, Documents) {
  ExpectGradients({.seq_len = kSlow ? 80 : 300,
                   .heads = 1,
                   .kind = DecayKind::kPerTokenChannel,
                   .document_starts = {10, 64}});
}

TEST(CudaChannelReverseScan, DecayWhereADocumentStartsHasNoGradient) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  Problem problem({.seq_len = 100,
                   .heads = 1,
                   .kind = DecayKind::kPerTokenChannel,
                   .document_starts = {10, 64}});
  problem.Forward(/*with_checkpoints=*/true);
  problem.Backward();
  for (const int t : {10, 64})
    for (int c = 0; c < 64; ++c)
      EXPECT_EQ(problem.answer_.dlog_decay.Get(0, t, 0, c), 0) << t << ", " << c;
}

TEST(CudaChannelReverseScan, DocumentsOfTwoRowsAndPackedSequences) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ExpectGradients({.batch = 2,
                   .seq_len = 300,
                   .heads = 1,
                   .kind = DecayKind::kPerTokenChannel,
                   .document_starts = {0, 100, 117, 256, 300, 301, 500}});
  ExpectGradients({.seq_len = 200,
                   .heads = 1,
                   .kind = DecayKind::kPerTokenChannel,
                   .document_starts = {0, 10, 80},
                   .cu_seqlens = {0, 0, 63, 63, 64, 128, 193, 200}});
}

TEST(CudaChannelReverseScan, GradientsDoNotKnowOfEarlierOutputs) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel})
    for (const int token : {3, 15, 16, 63, 64})
      ExpectGradientsKnowLaterOutputsOnly({.seq_len = 70, .heads = 1, .kind = kind}, token);
}

TEST(CudaChannelReverseScan, TwoRunsAgreeInEveryBit) {
  ProblemShape shape = {.seq_len = 70, .heads = 2, .kind = DecayKind::kPerTokenChannel};
  shape.k_heads = 1;
  ExpectTwoRunsAgreeInEveryBit(shape);
}

}  // namespace
}  // namespace halflife::kernels::test
