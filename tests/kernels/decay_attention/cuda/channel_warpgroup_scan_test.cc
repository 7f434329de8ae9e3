// The emulated forward scan with WGMMA and decays per channel equals the oracle, with operands of
// chunks of 64 tokens. Its backward starts from the checkpoints that it leaves.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

constexpr DecayKind kChannelKinds[] = {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel};

ProblemShape OfChannels(ProblemShape shape) {
  shape.warpgroups = true;
  if (shape.kind == DecayKind::kPerToken) shape.kind = DecayKind::kPerTokenChannel;
  return shape;
}
void ExpectForwardByWarpgroups(const ProblemShape& shape) {
  ASSERT_TRUE(Problem(OfChannels(shape)).Plan().forward_warpgroups) << shape.Name();
  ExpectForward(OfChannels(shape));
}

TEST(CudaChannelWarpgroupScan, AnyLengthAndKind) {
  for (const DecayKind kind : kChannelKinds)
    for (const int seq_len : Lengths()) {
      if (kSlow && seq_len != 65) continue;
      ExpectForwardByWarpgroups({.seq_len = seq_len, .heads = 1, .kind = kind});
    }
}

// More chunks than twice the stages, so that each stage is reused in both phases.
TEST(CudaChannelWarpgroupScan, EveryInstance) {
  for (const int dim_k : {64, 128})
    for (const int dim_v : {64, 128}) {
      if (kSlow && dim_k != dim_v) continue;
      ExpectForwardByWarpgroups({.seq_len = kSlow ? 270 : 600,
                                 .heads = kSlow ? 1 : 2,
                                 .dim_k = dim_k,
                                 .dim_v = dim_v,
                                 .key_scale = true});
    }
}

TEST(CudaChannelWarpgroupScan, AdversarialDecays) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  for (const DecayKind kind : kChannelKinds) {
    for (const Strength strength : kAdversarial)
      ExpectForwardByWarpgroups({.seq_len = 200, .heads = 1, .kind = kind, .strength = strength});
    ExpectForwardByWarpgroups(
        {.seq_len = 64, .heads = 1, .kind = kind, .strength = Strength::kGrowth});
  }
}

TEST(CudaChannelWarpgroupScan, SlicesSegmentsAndTurns) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  ExpectForwardByWarpgroups({.seq_len = 70, .heads = 1, .dim_k = 128, .dim_v = 256});
  ExpectForwardByWarpgroups({.seq_len = 70, .heads = 1, .dim_v = 512});
  for (const int dim_k : {64, 128})
    for (const int dim_v : {64, 128})
      ExpectForwardByWarpgroups(
          {.seq_len = 530, .heads = 1, .dim_k = dim_k, .dim_v = dim_v, .num_segments = 3});
  ExpectForwardByWarpgroups({.batch = 3, .seq_len = 70, .heads = 1, .batch_tiles = 2});
  ExpectForwardByWarpgroups(
      {.batch = 3, .seq_len = 200, .heads = 2, .num_segments = 2, .batch_tiles = 3});
}

TEST(CudaChannelWarpgroupScan, BatchTilesChangeNoBit) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  std::vector<Result> results;
  for (const int batch_tiles : {1, 2, 3}) {
    Problem problem(
        OfChannels({.batch = 5, .seq_len = 300, .heads = 1, .batch_tiles = batch_tiles}));
    problem.Forward(/*with_checkpoints=*/true);
    results.push_back(problem.Collect(/*backward=*/false));
  }
  ExpectSameBits(results[1], results[0]);
  ExpectSameBits(results[2], results[0]);
}

TEST(CudaChannelWarpgroupScan, SharedHeads) {
  for (const DecayKind kind : kChannelKinds) {
    ProblemShape shape = {.batch = 2, .seq_len = kSlow ? 20 : 70, .heads = 4, .kind = kind};
    shape.q_heads = shape.v_heads = 2;
    shape.k_heads = shape.decay_heads = 1;
    ExpectForwardByWarpgroups(shape);
  }
}

TEST(CudaChannelWarpgroupScan, Documents) {
  ProblemShape rows = {.batch = 2, .seq_len = 150, .heads = 1};
  rows.document_starts = {30, 64, 100, 150 + 1, 150 + 128};
  if (!kSlow) ExpectForwardByWarpgroups(rows);
  rows.num_segments = 2;
  if (!kSlow) ExpectForwardByWarpgroups(rows);
  ProblemShape packed = {.seq_len = 200, .heads = 1};
  packed.document_starts = {0, 10, 80};
  packed.cu_seqlens = {0, 0, 63, 63, 64, 128, 193, 200};
  ExpectForwardByWarpgroups(packed);
}

TEST(CudaChannelWarpgroupScan, GradientsFromWhatItKeeps) {
  if (kSlow) GTEST_SKIP() << "the backward is the scan by warps'";
  for (const DecayKind kind : kChannelKinds)
    ExpectGradients(OfChannels({.seq_len = 300, .heads = 1, .kind = kind}));
  ExpectGradients(OfChannels({.seq_len = 150, .heads = 1, .dim_k = 128, .dim_v = 256}));
}

TEST(CudaChannelWarpgroupScan, TwoRunsAgreeInEveryBit) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  ExpectTwoRunsAgreeInEveryBit(OfChannels({.seq_len = 200, .heads = 2, .dim_v = 128}));
}

// Tokens of each block of 8 within a chunk: nothing before them changes.
TEST(CudaChannelWarpgroupScan, EarlierOutputsDoNotKnowOfLaterTokens) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  const ProblemShape shape = OfChannels({.seq_len = 130, .heads = 1});
  Problem before(shape);
  before.Forward();
  for (const int token : {1, 8, 25, 47, 63, 64, 100}) {
    Problem after(shape);
    for (int c = 0; c < shape.dim_k; ++c) {
      after.q_.Set(0, token, 0, c, 2);
      after.k_.Set(0, token, 0, c, -3);
      after.decay_.Set(0, token, 0, c, -2);
    }
    for (int c = 0; c < shape.dim_v; ++c) after.v_.Set(0, token, 0, c, 4);
    after.Forward();
    ExpectSameTokens(before.answer_.out, after.answer_.out, 0, token);
    EXPECT_NE(before.answer_.out.Get(0, token, 0, 0), after.answer_.out.Get(0, token, 0, 0));
  }
}

// A bulk copy of v also reads what follows a chunk: another document or another row.
TEST(CudaChannelWarpgroupScan, TokensAfterAChunkHaveNoEffect) {
  ProblemShape shape = OfChannels({.seq_len = 100, .heads = 1});
  shape.cu_seqlens = {0, 41, 100};
  for (const int num_segments : {1, 2}) {
    shape.num_segments = num_segments;
    Problem clean(shape), poisoned(shape);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (Tensor* x : {&poisoned.q_, &poisoned.k_, &poisoned.v_, &poisoned.decay_})
      for (int c = 0; c < x->width(); ++c) x->Set(0, 41, 0, c, nan);
    for (Problem* problem : {&clean, &poisoned}) problem->Forward();
    ExpectSameTokens(poisoned.answer_.out, clean.answer_.out, 0, 41);
    EXPECT_EQ(std::memcmp(poisoned.final_state_.data(), clean.final_state_.data(),
                          size_t{64} * 64 * sizeof(float)),
              0);
    EXPECT_TRUE(std::isnan(poisoned.answer_.out.Get(0, 42, 0, 0)));
  }
}

// A NaN stays where the contract allows it, also within a chunk.
TEST(CudaChannelWarpgroupScan, NanInAQueryOrAKey) {
  const ProblemShape shape = OfChannels({.seq_len = 64, .heads = 1});
  constexpr int kToken = 20;
  Problem clean(shape), query(shape), key(shape);
  query.q_.Set(0, kToken, 0, 5, std::numeric_limits<float>::quiet_NaN());
  key.k_.Set(0, kToken, 0, 5, std::numeric_limits<float>::quiet_NaN());
  for (Problem* problem : {&clean, &query, &key}) problem->Forward();
  for (Problem* problem : {&query, &key}) {
    ExpectSameTokens(problem->answer_.out, clean.answer_.out, 0, kToken);
    EXPECT_TRUE(std::isnan(problem->answer_.out.Get(0, kToken, 0, 0)));
  }
  ExpectSameTokens(query.answer_.out, clean.answer_.out, kToken + 1, shape.seq_len);
  EXPECT_TRUE(std::isnan(key.answer_.out.Get(0, kToken + 1, 0, 0)));
}

TEST(CudaChannelWarpgroupScan, TakesHeadsThatFillTheirBlocks) {
  ExpectTakesHeadsThatFillTheirBlocks([](const ProblemShape& shape) {
    return Problem(OfChannels(shape)).Plan().forward_warpgroups;
  });
}

}  // namespace
}  // namespace halflife::kernels::test
