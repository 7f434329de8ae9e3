// The wgmma backward with decays per channel: the states of chunks, and the gradients of all chunks
// in parallel. The emulated kernels equal the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

constexpr DecayKind kChunkKinds[] = {DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel};

ProblemShape InChunks(ProblemShape shape) {
  shape.warpgroups = true;
  if (shape.kind == DecayKind::kPerToken) shape.kind = DecayKind::kPerTokenChannel;
  return shape;
}
void ExpectGradientsInChunks(const ProblemShape& shape) {
  ASSERT_TRUE(Problem(InChunks(shape)).Plan().backward_warpgroups) << shape.Name();
  ExpectGradients(InChunks(shape));
}
void RunBothWays(Problem& problem) {
  problem.Forward(/*with_checkpoints=*/true);
  problem.Backward();
}
void ExpectSameGradients(const Answer& got, const Answer& want, int begin, int end) {
  for (const auto& [a, b] : {std::pair(&got.dq, &want.dq),
                             {&got.dk, &want.dk},
                             {&got.dv, &want.dv},
                             {&got.dlog_decay, &want.dlog_decay},
                             {&got.dkey_scale, &want.dkey_scale}})
    ExpectSameTokens(*a, *b, begin, end);
}

TEST(CudaChannelChunkGradients, AnyLengthAndKind) {
  for (const DecayKind kind : kChunkKinds)
    for (const int seq_len : Lengths()) {
      if (kSlow && (seq_len != 65 || kind == DecayKind::kPerHeadChannel)) continue;
      ExpectGradientsInChunks({.seq_len = seq_len, .heads = 1, .kind = kind, .key_scale = true});
    }
}

TEST(CudaChannelChunkGradients, EveryInstance) {
  for (const int dim_k : {64, 128})
    for (const int dim_v : {64, 128}) {
      if (kSlow && dim_k + dim_v != 256) continue;
      ExpectGradientsInChunks({.seq_len = kSlow ? 70 : 300,
                               .heads = kSlow ? 1 : 2,
                               .dim_k = dim_k,
                               .dim_v = dim_v,
                               .key_scale = !kSlow});
    }
}

TEST(CudaChannelChunkGradients, AdversarialDecays) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  for (const DecayKind kind : kChunkKinds)
    for (const Strength strength : kAdversarial)
      ExpectGradientsInChunks({.seq_len = 150, .heads = 1, .kind = kind, .strength = strength});
}

TEST(CudaChannelChunkGradients, GrowthUpToSixtyAChunk) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  for (const DecayKind kind : kChunkKinds)
    ExpectGradientsInChunks(
        {.seq_len = 64, .heads = 1, .kind = kind, .strength = Strength::kGrowth});
}

TEST(CudaChannelChunkGradients, SlicesOfV) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  ExpectGradientsInChunks({.seq_len = 70, .heads = 1, .dim_k = 128, .dim_v = 256});
  ExpectGradientsInChunks({.seq_len = 130, .heads = 1, .dim_v = 512, .block = {64, 64}});
  ExpectGradientsInChunks({.seq_len = 70, .heads = 1, .dim_v = 192, .block = {64, 64}});
}

TEST(CudaChannelChunkGradients, SegmentsAndTurns) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  for (const DecayKind kind : kChunkKinds) {
    ExpectGradientsInChunks(
        {.seq_len = 530, .heads = 1, .dim_k = 128, .kind = kind, .num_segments = 3});
    ExpectGradientsInChunks({.batch = 3,
                             .seq_len = 200,
                             .heads = 2,
                             .kind = kind,
                             .num_segments = 2,
                             .batch_tiles = 2});
  }
}

TEST(CudaChannelChunkGradients, TurnsChangeNoBit) {
  if (kSanitized) GTEST_SKIP() << "the accesses are those of other tests";
  for (const DecayKind kind : kChunkKinds) {
    std::vector<Result> results;
    for (const int batch_tiles : {1, 2, 3}) {
      ProblemShape shape = InChunks(
          {.batch = 3, .seq_len = 140, .heads = 2, .kind = kind, .batch_tiles = batch_tiles});
      shape.document_starts = {10, 20, 140 + 64, 140 + 100};  // The first row has one more chunk.
      Problem problem(shape);
      RunBothWays(problem);
      results.push_back(problem.Collect(/*backward=*/true));
    }
    ExpectSameBits(results[1], results[0]);
    ExpectSameBits(results[2], results[0]);
  }
}

TEST(CudaChannelChunkGradients, SharedHeads) {
  for (const DecayKind kind : kChunkKinds) {
    if (kSlow && kind == DecayKind::kPerHeadChannel) continue;
    ProblemShape shape = {.batch = 2, .seq_len = kSlow ? 20 : 70, .heads = 4, .kind = kind};
    shape.q_heads = shape.v_heads = 2;
    shape.k_heads = shape.decay_heads = 1;
    ExpectGradientsInChunks(shape);
  }
}

TEST(CudaChannelChunkGradients, DocumentsAndPackedSequences) {
  ProblemShape rows = {.batch = 2, .seq_len = 150, .heads = 1};
  rows.document_starts = {30, 64, 100, 150 + 1, 150 + 128};
  for (const int num_segments : {1, 2}) {
    rows.num_segments = num_segments;
    if (!kSlow) ExpectGradientsInChunks(rows);
  }
  ProblemShape packed = {.seq_len = 200, .heads = 1, .key_scale = true};
  packed.document_starts = {0, 10, 80};
  packed.cu_seqlens = {0, 0, 63, 63, 64, 128, 193, 200};
  ExpectGradientsInChunks(packed);
}

TEST(CudaChannelChunkGradients, ADecayOfZeroOrBeforeADocumentHasNoGradient) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  ProblemShape shape = InChunks({.seq_len = 130, .heads = 1, .strength = Strength::kResets});
  shape.document_starts = {10, 64};
  Problem problem(shape);
  RunBothWays(problem);
  int infinite = 0;
  for (int t = 0; t < 130; ++t)
    for (int c = 0; c < 64; ++c) {
      const bool cut = std::isinf(problem.decay_.Get(0, t, 0, c));
      infinite += cut ? 1 : 0;
      if (!cut && t != 10 && t != 64) continue;
      EXPECT_EQ(problem.answer_.dlog_decay.Get(0, t, 0, c), 0) << t << ", " << c;
    }
  EXPECT_GT(infinite, 100);
}

// Tokens of each tile of 16.
TEST(CudaChannelChunkGradients, KnowLaterOutputsOnly) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  for (const int token : {3, 15, 16, 47, 63, 64, 100})
    ExpectGradientsKnowLaterOutputsOnly(InChunks({.seq_len = 130, .heads = 1}), token);
}

// The states read the rows of v and dout that follow a chunk: here, those of another sequence.
TEST(CudaChannelChunkGradients, TokensAfterAChunkHaveNoEffect) {
  ProblemShape shape = InChunks({.seq_len = 100, .heads = 1, .key_scale = true});
  shape.cu_seqlens = {0, 41, 100};
  Problem clean(shape), poisoned(shape);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Tensor* x : {&poisoned.q_, &poisoned.k_, &poisoned.v_, &poisoned.dout_, &poisoned.decay_})
    for (int c = 0; c < x->width(); ++c) x->Set(0, 41, 0, c, nan);
  for (Problem* problem : {&clean, &poisoned}) RunBothWays(*problem);
  ExpectSameGradients(poisoned.answer_, clean.answer_, 0, 41);
  EXPECT_TRUE(std::isnan(poisoned.answer_.dq.Get(0, 42, 0, 0)));
}

TEST(CudaChannelChunkGradients, ANanStaysInItsDocumentAndHead) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  ProblemShape shape = InChunks({.seq_len = 200, .heads = 2, .key_scale = true});
  shape.document_starts = {70, 150};
  Problem clean(shape);
  RunBothWays(clean);
  for (Tensor Problem::*of : {&Problem::q_, &Problem::k_, &Problem::v_, &Problem::dout_,
                              &Problem::key_scale_, &Problem::decay_}) {
    Problem poisoned(shape);
    (poisoned.*of).Set(0, 100, 0, 0, std::numeric_limits<float>::quiet_NaN());
    RunBothWays(poisoned);
    ExpectSameGradients(poisoned.answer_, clean.answer_, 0, 70);
    ExpectSameGradients(poisoned.answer_, clean.answer_, 150, 200);
    for (int t = 70; t < 150; ++t)
      for (int c = 0; c < 64; ++c)
        ASSERT_EQ(poisoned.answer_.dk.Get(0, t, 1, c), clean.answer_.dk.Get(0, t, 1, c)) << t;
  }
}

TEST(CudaChannelChunkGradients, OthersWithoutThoseOfDecays) {
  for (const DecayKind kind : kChunkKinds) {
    Problem all(InChunks({.seq_len = 100, .heads = 1, .kind = kind})), some(all.shape());
    RunBothWays(all);
    some.Forward(/*with_checkpoints=*/true);
    DecayAttentionGradArgs grads = some.GradArgs();
    grads.dlog_decay = {};
    some.Backward(grads);
    for (const auto& [a, b] : {std::pair(&some.answer_.dq, &all.answer_.dq),
                               {&some.answer_.dk, &all.answer_.dk},
                               {&some.answer_.dv, &all.answer_.dv}})
      ExpectSameTokens(*a, *b, 0, 100);
  }
}

TEST(CudaChannelChunkGradients, TwoRunsAgreeInEveryBit) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  ProblemShape shape = InChunks({.seq_len = 200, .heads = 2, .dim_k = 128, .dim_v = 128});
  shape.k_heads = 1;
  ExpectTwoRunsAgreeInEveryBit(shape);
}

// Tensors that bulk copies cannot read, or that cannot be written in units of 16 bytes, use the
// mma.sync kernels and the planned workspace.
TEST(CudaChannelChunkGradients, GradientsThatAreNoRows) {
  if (kSlow) GTEST_SKIP() << "the accesses are those of other tests";
  for (const bool of_output : {true, false}) {
    const ProblemShape shape = {.seq_len = 20, .heads = 1, .kind = DecayKind::kPerTokenChannel};
    Problem by_warps(shape), odd(InChunks(shape));
    Tensor& gradient = of_output ? odd.dout_ : odd.answer_.dv;
    gradient = Tensor({1, shape.seq_len, 1, 64}, DType::kBF16, {.padding = 3});
    if (of_output) gradient.Set(by_warps.dout_.Get());
    ASSERT_TRUE(odd.Plan().backward_warpgroups);
    for (Problem* problem : {&by_warps, &odd}) RunBothWays(*problem);
    for (const auto& [a, b] : {std::pair(&odd.answer_.dq, &by_warps.answer_.dq),
                               {&odd.answer_.dlog_decay, &by_warps.answer_.dlog_decay}})
      ExpectSameTokens(*a, *b, 0, shape.seq_len);
  }
}

TEST(CudaChannelChunkGradients, TakeHeadsThatFillTheirBlocks) {
  ExpectTakesHeadsThatFillTheirBlocks([](const ProblemShape& shape) {
    return Problem(InChunks(shape)).Plan().backward_warpgroups;
  });
}

}  // namespace
}  // namespace halflife::kernels::test
