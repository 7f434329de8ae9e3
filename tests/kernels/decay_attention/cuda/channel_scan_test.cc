// The tensor-core forward scan with decays per channel equals the oracle, in the emulator.
#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

TEST(CudaChannelScan, AnyLengthAndKind) {
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel})
    for (const int seq_len : Lengths()) {
      if (kSlow && seq_len != 65) continue;
      ExpectForward({.seq_len = seq_len, .heads = 1, .kind = kind});
    }
}

TEST(CudaChannelScan, EveryInstanceWithPaddedHeads) {
  for (const int dim_k : {24, 60, 100, 128})
    for (const int dim_v : {40, 64, 100}) {
      if (kSlow && (dim_k != 100 || dim_v == 64)) continue;
      ExpectForward({.seq_len = kSlow ? 20 : 80,
                     .heads = 1,
                     .dim_k = dim_k,
                     .dim_v = dim_v,
                     .kind = DecayKind::kPerTokenChannel});
    }
}

TEST(CudaChannelScan, BlocksOf128ColumnsOfV) {
  for (const HeadDims& dims : kWideHeads) {
    if (kSlow && dims.v != 100) continue;
    ExpectForward({.seq_len = kSlow ? 20 : 80,
                   .heads = 1,
                   .dim_k = dims.k,
                   .dim_v = dims.v,
                   .kind = DecayKind::kPerTokenChannel,
                   .block_v = 128});
  }
}

TEST(CudaChannelScan, AdversarialDecays) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel}) {
    for (const Strength strength : kAdversarial)
      ExpectForward({.seq_len = 130, .heads = 1, .kind = kind, .strength = strength});
    ExpectForward({.seq_len = 64, .heads = 1, .kind = kind, .strength = Strength::kGrowth});
  }
}

TEST(CudaChannelScan, SharedHeadsSlicesDocumentsAndSequences) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ProblemShape shape = {.batch = 2, .seq_len = 70, .heads = 4, .dim_v = 70};
  shape.kind = DecayKind::kPerHeadChannel;
  shape.q_heads = shape.v_heads = 2;
  shape.k_heads = shape.decay_heads = 1;
  shape.key_scale = shape.odd_strides = true;
  shape.block_v = 64;
  ExpectForward(shape);
  ExpectForward({.seq_len = 200,
                 .heads = 1,
                 .kind = DecayKind::kPerTokenChannel,
                 .document_starts = {0, 10, 80},
                 .cu_seqlens = {0, 0, 63, 63, 64, 128, 193, 200}});
}

TEST(CudaChannelScan, EarlierOutputsDoNotKnowOfLaterTokens) {
  const ProblemShape shape = {.seq_len = 40, .heads = 1, .kind = DecayKind::kPerTokenChannel};
  Problem before(shape), after(shape);
  before.Forward();
  constexpr int kToken = 25;
  for (int c = 0; c < shape.dim_k; ++c) {
    after.k_.Set(0, kToken, 0, c, -3);
    after.decay_.Set(0, kToken, 0, c, -2);
  }
  after.Forward();
  for (int t = 0; t < kToken; ++t)
    for (int c = 0; c < shape.dim_v; ++c)
      ASSERT_EQ(before.answer_.out.Get(0, t, 0, c), after.answer_.out.Get(0, t, 0, c)) << t;
  EXPECT_NE(before.answer_.out.Get(0, kToken, 0, 0), after.answer_.out.Get(0, kToken, 0, 0));
}

}  // namespace
}  // namespace halflife::kernels::test
