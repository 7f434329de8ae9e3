// The warpgroup (WGMMA) backward computes the gradients of all chunks in parallel. The emulated
// kernel equals the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

ProblemShape ByWarpgroups(ProblemShape shape) {
  shape.warpgroups = true;
  return shape;
}
void ExpectGradientsByWarpgroups(const ProblemShape& shape) {
  ASSERT_TRUE(Problem(ByWarpgroups(shape)).Plan().backward_warpgroups) << shape.Name();
  ExpectGradients(ByWarpgroups(shape));
}
Result GradientsOf(Problem& problem) {
  problem.Forward(/*with_checkpoints=*/true);
  problem.Backward();
  return problem.Collect(true);
}

// With checkpoints of a forward and without gradients of decays.
Answer GradientsButThoseOfDecays(const ProblemShape& shape) {
  Problem problem(shape);
  problem.Forward(/*with_checkpoints=*/true);
  DecayAttentionGradArgs grads = problem.GradArgs();
  grads.dlog_decay = {};
  problem.Backward(grads);
  return std::move(problem.answer_);
}

TEST(CudaWarpgroupGradients, AnyLength) {
  for (const int seq_len : Lengths()) {
    if (kSlow && seq_len != 65) continue;
    ExpectGradientsByWarpgroups({.seq_len = seq_len, .heads = seq_len == 1 ? 8 : 1});
  }
}

TEST(CudaWarpgroupGradients, EveryInstanceAndKind) {
  for (const HeadDims& dims : {HeadDims{64, 64}, {64, 128}, {128, 64}, {128, 128}})
    for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerToken}) {
      if (kSlow && (dims.k != 128 || kind != DecayKind::kPerToken)) continue;
      if (kSanitized && dims.k + dims.v != 256) continue;
      ExpectGradientsByWarpgroups({.seq_len = kSlow ? 70 : 200,
                                   .heads = DecayHeads(kind),
                                   .dim_k = dims.k,
                                   .dim_v = dims.v,
                                   .kind = kind,
                                   .key_scale = kind != DecayKind::kNone});
    }
}

TEST(CudaWarpgroupGradients, AdversarialDecays) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken})
    for (const Strength strength : kAdversarial)
      ExpectGradientsByWarpgroups(
          {.seq_len = 150, .heads = DecayHeads(kind), .kind = kind, .strength = strength});
}

TEST(CudaWarpgroupGradients, GrowthUpToSixtyAChunk) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  // All decays of a chunk share one sum over the state, so each head is one random draw.
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken})
    ExpectGradientsByWarpgroups(
        {.seq_len = 64, .heads = 8, .kind = kind, .strength = Strength::kGrowth});
}

TEST(CudaWarpgroupGradients, SlicesOfKAndV) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  ExpectGradientsByWarpgroups(
      {.seq_len = 70, .heads = 1, .dim_k = 128, .dim_v = 256, .key_scale = true});
  ExpectGradientsByWarpgroups({.seq_len = 70, .heads = 1, .dim_k = 256, .dim_v = 512});
  ExpectGradientsByWarpgroups(
      {.batch = 2, .seq_len = 130, .heads = 2, .dim_v = 192, .key_scale = true, .block = {64, 64}});
  ExpectGradientsByWarpgroups({.seq_len = 70,
                               .heads = 3,
                               .dim_k = 128,
                               .dim_v = 256,
                               .kind = DecayKind::kPerHead,
                               .block = {64, 64}});
}

TEST(CudaWarpgroupGradients, SegmentsAndTurns) {
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken}) {
    if (kSlow && kind == DecayKind::kPerHead) continue;
    ExpectGradientsByWarpgroups(
        {.seq_len = 520, .heads = DecayHeads(kind), .kind = kind, .num_segments = 2});
    if (kSlow) continue;
    ExpectGradientsByWarpgroups(
        {.batch = 3, .seq_len = 140, .heads = 2, .kind = kind, .batch_tiles = 2});
  }
}

// Batch tiles share a workspace and change no bit.
TEST(CudaWarpgroupGradients, TurnsChangeNoBit) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken}) {
    ProblemShape shape =
        ByWarpgroups({.batch = 3, .seq_len = 140, .heads = 2, .kind = kind, .key_scale = true});
    shape.document_starts = {10, 20, 140 + 64, 140 + 100};  // The first row has one more chunk.
    Problem at_once(shape);
    shape.batch_tiles = 3;
    Problem tiled(shape);
    ExpectSameBits(GradientsOf(tiled), GradientsOf(at_once));
  }
}

TEST(CudaWarpgroupGradients, SharedHeads) {
  ProblemShape shape = {.batch = 2, .seq_len = kSlow ? 20 : 70, .heads = 4};
  shape.q_heads = 2;
  shape.k_heads = 1;
  shape.v_heads = 2;
  shape.decay_heads = 1;
  ExpectGradientsByWarpgroups(shape);
}

TEST(CudaWarpgroupGradients, Documents) {
  ProblemShape rows = {.batch = 2, .seq_len = 150, .heads = 1};
  rows.document_starts = {30, 64, 100, 150 + 1, 150 + 128};
  if (!kSlow) ExpectGradientsByWarpgroups(rows);
  ProblemShape packed = {.seq_len = 200, .heads = 1};
  packed.cu_seqlens = {0, 30, 30, 95, 96, 200};
  ExpectGradientsByWarpgroups(packed);
}

// A bulk copy also reads what follows a chunk: another document or another row.
TEST(CudaWarpgroupGradients, TokensAfterAChunkHaveNoEffect) {
  for (const int slices_of_v : {1, 3}) {
    if (kSlow && slices_of_v == 1) continue;
    ProblemShape shape = ByWarpgroups({.seq_len = 100,
                                       .heads = 1,
                                       .dim_v = 64 * slices_of_v,
                                       .key_scale = true,
                                       .block = {64, 64}});
    shape.cu_seqlens = {0, 40, 100};
    Problem clean(shape), poisoned(shape);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (Tensor* x : {&poisoned.q_, &poisoned.k_, &poisoned.v_, &poisoned.dout_})
      for (int c = 0; c < x->width(); ++c) x->Set(0, 40, 0, c, nan);
    GradientsOf(clean);
    GradientsOf(poisoned);
    const Answer &a = clean.answer_, &b = poisoned.answer_;
    for (const auto& [want, got] : {std::pair(&a.dq, &b.dq),
                                    {&a.dk, &b.dk},
                                    {&a.dv, &b.dv},
                                    {&a.dlog_decay, &b.dlog_decay},
                                    {&a.dkey_scale, &b.dkey_scale}})
      ExpectSameTokens(*got, *want, 0, 40);
    EXPECT_TRUE(std::isnan(b.dq.Get(0, 41, 0, 0)));
  }
}

TEST(CudaWarpgroupGradients, KnowLaterOutputsOnly) {
  for (const int token : {3, 64, 90})
    if (!kSlow || token == 90)
      ExpectGradientsKnowLaterOutputsOnly(ByWarpgroups({.seq_len = 130, .heads = 1}), token);
}

TEST(CudaWarpgroupGradients, OthersWithoutThoseOfDecays) {
  ProblemShape shape = ByWarpgroups({.seq_len = 100, .heads = 1});
  Problem all(shape);
  GradientsOf(all);
  const Answer some = GradientsButThoseOfDecays(shape);
  ExpectSameTokens(some.dq, all.answer_.dq, 0, 100);
  ExpectSameTokens(some.dk, all.answer_.dk, 0, 100);
  ExpectSameTokens(some.dv, all.answer_.dv, 0, 100);
}

TEST(CudaWarpgroupGradients, DecayOfZeroHasNoGradient) {
  Problem problem(ByWarpgroups({.seq_len = 130, .heads = 1, .strength = Strength::kResets}));
  GradientsOf(problem);
  int cut = 0;
  for (int t = 0; t < 130; ++t) {
    if (!std::isinf(problem.decay_.Get(0, t, 0, 0))) continue;
    ++cut;
    EXPECT_EQ(problem.answer_.dlog_decay.Get(0, t, 0, 0), 0) << t;
  }
  EXPECT_GT(cut, 0);
}

// Tensors that bulk copies cannot read, or that cannot be written in whole units, use the warp
// kernel and the planned workspace.
TEST(CudaWarpgroupGradients, GradientsThatAreNoRows) {
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken})
    for (const bool of_output : {true, false}) {
      const ProblemShape shape = {.seq_len = 20, .heads = 1, .kind = kind};
      Problem by_warps(shape), odd(ByWarpgroups(shape));
      Tensor& gradient = of_output ? odd.dout_ : odd.answer_.dk;
      gradient = Tensor({1, shape.seq_len, 1, 64}, DType::kBF16, {.padding = 3});
      if (of_output) gradient.Set(by_warps.dout_.Get());
      ASSERT_TRUE(odd.Plan().backward_warpgroups);
      ExpectSameBits(GradientsOf(odd), GradientsOf(by_warps));
    }
}

// Bulk copies can read dout if the gap between rows of the batch is a whole number of tokens. In
// batch tiles of one row, too, the stride of the whole batch counts.
TEST(CudaWarpgroupGradients, GapsBetweenRowsOfDoutInBatchTiles) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  ProblemShape shape = {
      .batch = 3, .seq_len = 70, .heads = 1, .kind = DecayKind::kPerToken, .batch_tiles = 3};
  Problem by_warps(shape), dense(ByWarpgroups(shape));
  const Result of_warps = GradientsOf(by_warps), of_warpgroups = GradientsOf(dense);
  for (const bool whole_tokens : {true, false}) {
    Problem gapped(ByWarpgroups(shape));
    gapped.dout_ =
        Tensor({3, shape.seq_len, 1, 64}, DType::kBF16, {.between_rows = whole_tokens ? 128 : 32});
    gapped.dout_.Set(dense.dout_.Get());
    ASSERT_TRUE(gapped.Plan().backward_warpgroups);
    ExpectSameBits(GradientsOf(gapped), whole_tokens ? of_warpgroups : of_warps);
  }
}

// A NaN only affects its document and head.
TEST(CudaWarpgroupGradients, ANanStaysInItsDocument) {
  ProblemShape shape = ByWarpgroups({.seq_len = 200, .heads = 2, .dim_v = 128, .block_v = 128});
  shape.key_scale = true;
  shape.document_starts = {70, 150};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Problem clean(shape);
  GradientsOf(clean);
  for (Tensor Problem::*of :
       {&Problem::q_, &Problem::k_, &Problem::v_, &Problem::dout_, &Problem::key_scale_}) {
    if (kSlow && of != &Problem::v_) continue;
    Problem poisoned(shape);
    ASSERT_TRUE(poisoned.Plan().forward_warpgroups && poisoned.Plan().backward_warpgroups);
    (poisoned.*of).Set(0, 100, 0, 0, nan);
    GradientsOf(poisoned);
    const Answer &a = clean.answer_, &b = poisoned.answer_;
    for (const auto& [want, got] : {std::pair(&a.out, &b.out),
                                    {&a.dq, &b.dq},
                                    {&a.dk, &b.dk},
                                    {&a.dv, &b.dv},
                                    {&a.dlog_decay, &b.dlog_decay}}) {
      ExpectSameTokens(*got, *want, 0, 70);
      ExpectSameTokens(*got, *want, 150, 200);
      for (int t = 70; t < 150; ++t)
        for (int c = 0; c < got->width(); ++c)
          ASSERT_EQ(got->Get(0, t, 1, c), want->Get(0, t, 1, c)) << t;
    }
  }
}

// The tokens are in the middle of a base block of 8, in which weights of later keys are zero, too.
TEST(CudaWarpgroupGradients, ANanInAValueHasNoEffectOnEarlierQueries) {
  const ProblemShape shape =
      ByWarpgroups({.seq_len = 100, .heads = 1, .dim_v = 128, .block_v = 128});
  Problem clean(shape);
  GradientsOf(clean);
  for (const int token : {36, 37}) {
    Problem poisoned(shape);
    poisoned.v_.Set(0, token, 0, 0, std::numeric_limits<float>::quiet_NaN());
    GradientsOf(poisoned);
    ExpectSameTokens(poisoned.answer_.dq, clean.answer_.dq, 0, token);
    EXPECT_TRUE(std::isnan(poisoned.answer_.dq.Get(0, token, 0, 0)));
  }
}

TEST(CudaWarpgroupGradients, OnlyThoseOfKeyScalesAndFewChunksForManySegments) {
  const ProblemShape shape =
      ByWarpgroups({.seq_len = 70, .heads = 1, .key_scale = true, .num_segments = 4});
  Problem all(shape);
  GradientsOf(all);
  ExpectClose(shape, all.Compare(true));
  ExpectSameTokens(GradientsButThoseOfDecays(shape).dkey_scale, all.answer_.dkey_scale, 0, 70);
}

TEST(CudaWarpgroupGradients, TakeWhatFillsItsBlocks) {
  const auto takes = [](const ProblemShape& shape) {
    return Problem(ByWarpgroups(shape)).Plan().backward_warpgroups;
  };
  EXPECT_TRUE(takes({.dim_v = 64}));
  EXPECT_TRUE(takes({.batch = 3, .dim_k = 256, .dim_v = 512}));
  EXPECT_FALSE(takes({.dim_k = 96, .dim_v = 128}));
  EXPECT_FALSE(takes({.dim_v = 200}));
  EXPECT_FALSE(takes({.dim_v = 128, .norm = true}));
  EXPECT_FALSE(takes({.dim_v = 128, .odd_strides = true}));
}

}  // namespace
}  // namespace halflife::kernels::test
