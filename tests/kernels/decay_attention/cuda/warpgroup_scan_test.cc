// The emulated forward scan with WGMMA equals the oracle, and has the bits of the warp kernel,
// because it sums in the same order.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

ProblemShape ByWarpgroups(ProblemShape shape) {
  shape.warpgroups = true;
  if (shape.block_v == 0) shape.block_v = 128;
  return shape;
}

void ExpectSameAsByWarps(ProblemShape shape) {
  shape = ByWarpgroups(shape);
  SCOPED_TRACE(shape.Name());
  Problem by_warpgroups(shape);
  shape.warpgroups = false;
  Problem by_warps(shape);
  ASSERT_TRUE(by_warpgroups.Plan().forward_warpgroups);
  ASSERT_FALSE(by_warps.Plan().forward_warpgroups);
  for (Problem* problem : {&by_warpgroups, &by_warps}) problem->Forward(/*with_checkpoints=*/true);
  ExpectSameBits(by_warpgroups.Collect(false), by_warps.Collect(false));
  EXPECT_EQ(by_warpgroups.checkpoints_, by_warps.checkpoints_);
}

TEST(CudaWarpgroupScan, ForwardOfAnyLength) {
  for (const int seq_len : Lengths())
    ExpectForward(ByWarpgroups({.seq_len = seq_len, .heads = 1, .dim_v = 128}));
  ExpectForward(ByWarpgroups({.seq_len = 70, .heads = 2, .dim_k = 128, .dim_v = 128}));
}

TEST(CudaWarpgroupScan, GradientsFromWhatItKeeps) {
  if (kSlow) GTEST_SKIP() << "the backward is the scan by warps'";
  for (const int dim_k : {64, 128})
    ExpectGradients(
        ByWarpgroups({.seq_len = 300, .heads = 1, .dim_k = dim_k, .dim_v = 128, .states = true}));
}

// More chunks than stages, so each stage is reused.
TEST(CudaWarpgroupScan, SameBitsAsByWarps) {
  for (const int dim_k : {64, 128})
    for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerToken}) {
      if (kSlow && (kind != DecayKind::kPerToken || dim_k != 64)) continue;
      ExpectSameAsByWarps({.seq_len = kSlow ? 270 : 530,
                           .heads = kSlow ? 1 : 2,
                           .dim_k = dim_k,
                           .dim_v = 128,
                           .kind = kind,
                           .key_scale = kind == DecayKind::kPerToken});
    }
}

TEST(CudaWarpgroupScan, AdversarialDecays) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  for (const Strength strength : kAdversarial)
    ExpectSameAsByWarps({.seq_len = 150, .heads = 1, .dim_v = 128, .strength = strength});
}

TEST(CudaWarpgroupScan, SlicesSegmentsAndTurns) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  ExpectSameAsByWarps({.seq_len = 70, .heads = 1, .dim_v = 256});
  ExpectSameAsByWarps({.seq_len = 70, .heads = 1, .dim_k = 256, .dim_v = 256});
  ExpectSameAsByWarps({.seq_len = 520, .heads = 1, .dim_v = 128, .num_segments = 2});
  ExpectSameAsByWarps({.batch = 3, .seq_len = 70, .heads = 1, .dim_v = 128, .batch_tiles = 2});
}

TEST(CudaWarpgroupScan, SharedHeads) {
  ProblemShape shape = {.batch = 2, .seq_len = kSlow ? 20 : 70, .heads = 4, .dim_v = 128};
  shape.q_heads = 2;
  shape.k_heads = 1;
  shape.v_heads = 2;
  shape.decay_heads = 1;
  ExpectSameAsByWarps(shape);
}

// One warpgroup does the products of a whole head of 64 x 64.
TEST(CudaWarpgroupScan, HeadsOf64) {
  ProblemShape shape = {.seq_len = kSlow ? 200 : 530, .heads = 2, .dim_v = 64, .block_v = 64};
  shape.key_scale = true;
  shape.document_starts = {30, 64, 100};
  for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerToken}) {
    if (kSlow && kind != DecayKind::kPerToken) continue;
    shape.kind = kind;
    ExpectSameAsByWarps(shape);
  }
  if (kSlow) return;
  for (const int seq_len : Lengths())
    ExpectForward(ByWarpgroups({.seq_len = seq_len, .heads = 1, .block_v = 64}));
  ExpectGradients(ByWarpgroups({.seq_len = 300, .heads = 1, .block_v = 64}));
  ExpectSameAsByWarps(
      {.seq_len = 70, .heads = 1, .dim_k = 128, .dim_v = 192, .block_v = 64, .block = {64, 64}});
  ExpectSameAsByWarps({.seq_len = 520, .heads = 1, .num_segments = 2, .block_v = 64});
  shape = {.batch = 3, .seq_len = 70, .heads = 4, .batch_tiles = 2, .block_v = 64};
  shape.q_heads = shape.k_heads = shape.decay_heads = 1;
  ExpectSameAsByWarps(shape);
}

TEST(CudaWarpgroupScan, Documents) {
  ProblemShape rows = {.batch = 2, .seq_len = 150, .heads = 1, .dim_v = 128};
  rows.document_starts = {30, 64, 100, 150 + 1, 150 + 128};
  if (!kSlow) ExpectSameAsByWarps(rows);
  ProblemShape packed = {.seq_len = 200, .heads = 1, .dim_v = 128};
  packed.cu_seqlens = {0, 30, 30, 95, 96, 200};
  ExpectSameAsByWarps(packed);
}

// With a constant decay, a stage keeps its tables while its chunks have the same length. Key scales
// differ between tokens, so their tables are filled for every chunk.
TEST(CudaWarpgroupScan, TablesOfConstantDecaysFollowTheLengthsOfChunks) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHead})
    for (const bool key_scale : {false, true}) {
      ProblemShape shape = {
          .seq_len = 640, .heads = 1, .dim_v = 128, .kind = kind, .key_scale = key_scale};
      shape.document_starts = {0, 64, 94, 124, 154, 184, 214, 215, 543};
      ExpectSameAsByWarps(shape);
      ExpectForward(ByWarpgroups(shape));
    }
}

// A bulk copy also reads what follows a chunk: another document or another row.
TEST(CudaWarpgroupScan, TokensAfterAChunkHaveNoEffect) {
  ProblemShape shape = ByWarpgroups({.seq_len = 100, .heads = 1, .dim_v = 128});
  shape.cu_seqlens = {0, 40, 100};
  Problem clean(shape), poisoned(shape);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Tensor* x : {&poisoned.q_, &poisoned.k_, &poisoned.v_})
    for (int c = 0; c < x->width(); ++c) x->Set(0, 40, 0, c, nan);
  for (Problem* problem : {&clean, &poisoned}) problem->Forward();
  ExpectSameTokens(poisoned.answer_.out, clean.answer_.out, 0, 40);
  EXPECT_EQ(std::memcmp(poisoned.final_state_.data(), clean.final_state_.data(),
                        size_t{64} * 128 * sizeof(float)),
            0);
  EXPECT_TRUE(std::isnan(poisoned.answer_.out.Get(0, 41, 0, 0)));
}

// The tokens are in the middle of a base block of 8, whose pairs are computed together. A lane has
// an even and an odd key.
TEST(CudaWarpgroupScan, ANanInAKeyHasNoEffectOnEarlierTokens) {
  const ProblemShape shape = ByWarpgroups({.seq_len = 100, .heads = 1, .dim_v = 128});
  Problem clean(shape);
  clean.Forward();
  for (const int token : {36, 37}) {
    Problem poisoned(shape);
    for (int c = 0; c < shape.dim_k; ++c)
      poisoned.k_.Set(0, token, 0, c, std::numeric_limits<float>::quiet_NaN());
    poisoned.Forward();
    ExpectSameTokens(poisoned.answer_.out, clean.answer_.out, 0, token);
    EXPECT_TRUE(std::isnan(poisoned.answer_.out.Get(0, token, 0, 0)));
  }
}

TEST(CudaWarpgroupScan, TakesWhatBulkCopiesCanRead) {
  const auto takes = [](ProblemShape shape) {
    return Problem(ByWarpgroups(shape)).Plan().forward_warpgroups;
  };
  EXPECT_TRUE(takes({.dim_v = 128}));
  EXPECT_TRUE(takes({.batch = 3, .dim_k = 256, .dim_v = 512}));
  EXPECT_TRUE(takes({.dim_v = 64, .block_v = 64}));
  EXPECT_FALSE(takes({.dim_k = 128, .dim_v = 64, .block_v = 64}))
      << "two blocks by warps are faster";
  EXPECT_FALSE(takes({.dim_v = 64})) << "half of a block would be the next head's";
  EXPECT_FALSE(takes({.dim_k = 96, .dim_v = 128}));
  EXPECT_FALSE(takes({.dim_v = 200}));
  EXPECT_FALSE(takes({.dim_v = 128, .norm = true}));
  EXPECT_FALSE(takes({.dim_v = 128, .odd_strides = true}));
}

}  // namespace
}  // namespace halflife::kernels::test
