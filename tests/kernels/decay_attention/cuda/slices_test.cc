// Heads that are wider than a block's state are split into slices of K and V, with one more slice
// for the normalizer. The emulated kernels equal the oracle.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "kernels/decay_attention/cuda/expect.h"
#include "support/expect_error.h"

namespace halflife::kernels::test {
namespace {

constexpr DecayKind kKinds[] = {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                DecayKind::kPerToken, DecayKind::kPerTokenChannel};

// Returns a problem of 2 x 3 slices, of which only the first of each dimension is full.
ProblemShape Sliced(DecayKind kind) {
  return {.seq_len = kSlow ? 20 : 70,
          .heads = 1,
          .dim_k = 72,
          .dim_v = 136,
          .kind = kind,
          .block = {64, 64}};
}

TEST(CudaSlices, EveryKind) {
  for (const DecayKind kind : kKinds) {
    if (kSlow && !IsPerToken(kind)) continue;
    ProblemShape shape = Sliced(kind);
    ExpectGradients(shape);
    shape.key_scale = true;
    shape.odd_strides = true;
    ExpectGradients(shape);
  }
}

// Slices of only V, of only K, and of both, in the blocks that a plan selects.
TEST(CudaSlices, HeadsUpTo256And512) {
  if (kSanitized) GTEST_SKIP() << "adds no access that other tests do not make";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const HeadDims& dims : {HeadDims{64, 192}, HeadDims{64, 512}, HeadDims{128, 256},
                                 HeadDims{192, 64}, HeadDims{256, 128}, HeadDims{256, 512}})
      ExpectGradients({.seq_len = 66, .heads = 1, .dim_k = dims.k, .dim_v = dims.v, .kind = kind});
}

TEST(CudaSlices, SharedHeads) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : kKinds) {
    ProblemShape shape = Sliced(kind);
    shape.batch = shape.heads = 2;
    shape.seq_len = 20;
    shape.q_heads = shape.v_heads = shape.decay_heads = 1;
    shape.key_scale = true;
    ExpectGradients(shape);
  }
}

TEST(CudaSlices, SegmentsDocumentsAndPackedSequences) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerToken,
                               DecayKind::kPerHeadChannel, DecayKind::kPerTokenChannel}) {
    ProblemShape shape = Sliced(kind);
    shape.dim_v = 72;
    shape.num_segments = 2;
    shape.seq_len = 300;
    shape.document_starts = {100};
    ExpectGradients(shape);
    shape.seq_len = 200;
    shape.document_starts = {0, 10, 80};
    shape.cu_seqlens = {0, 0, 63, 128, 200};
    ExpectGradients(shape);
  }
}

TEST(CudaSlices, AdversarialDecays) {
  if (kSanitized) GTEST_SKIP() << "adds no access that other tests do not make";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const Strength strength : kAdversarial) {
      ProblemShape shape = Sliced(kind);
      shape.dim_v = 72;
      shape.strength = strength;
      ExpectGradients(shape);
    }
}

TEST(CudaSlices, GrowthUpToSixtyAChunk) {
  if (kSanitized) GTEST_SKIP() << "adds no access that other tests do not make";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerHeadChannel})
    for (const bool norm : {false, true}) {
      ProblemShape shape = Sliced(kind);
      shape.seq_len = 64;
      shape.strength = Strength::kGrowth;
      shape.norm = norm;
      ExpectGradients(shape);
    }
}

TEST(CudaSlices, GradientsDoNotKnowOfEarlierOutputs) {
  if (kSanitized) GTEST_SKIP() << "adds no access that other tests do not make";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    ExpectGradientsKnowLaterOutputsOnly(Sliced(kind), 64);
}

TEST(CudaSlices, TwoRunsAgreeInEveryBit) {
  ProblemShape shape = Sliced(DecayKind::kPerToken);
  shape.norm = true;
  ExpectTwoRunsAgreeInEveryBit(shape);
}

// The columns of a slice of V have the same bits as the slice computed separately.
TEST(CudaSlices, ColumnsAreThoseOfASeparateSlice) {
  if (kSanitized) GTEST_SKIP() << "adds no access that other tests do not make";
  for (const DecayKind kind : {DecayKind::kPerHead, DecayKind::kPerTokenChannel}) {
    ProblemShape shape = Sliced(kind);
    shape.states = false;
    Problem whole(shape);
    shape.dim_v = 64;
    Problem alone(shape);
    for (int t = 0; t < shape.seq_len; ++t) {
      for (int c = 0; c < shape.dim_k; ++c) {
        alone.q_.Set(0, t, 0, c, whole.q_.Get(0, t, 0, c));
        alone.k_.Set(0, t, 0, c, whole.k_.Get(0, t, 0, c));
      }
      for (int c = 0; c < 64; ++c) {
        alone.v_.Set(0, t, 0, c, whole.v_.Get(0, t, 0, 64 + c));
        alone.dout_.Set(0, t, 0, c, whole.dout_.Get(0, t, 0, 64 + c));
      }
    }
    const int decays = whole.decay_.width(), tokens = IsPerToken(kind) ? shape.seq_len : 1;
    for (int t = 0; t < tokens; ++t)
      for (int c = 0; c < decays; ++c) alone.decay_.Set(0, t, 0, c, whole.decay_.Get(0, t, 0, c));
    for (Problem* problem : {&whole, &alone}) {
      problem->Forward(/*with_checkpoints=*/true);
      problem->Backward();
    }
    for (int t = 0; t < shape.seq_len; ++t)
      for (int c = 0; c < 64; ++c) {
        ASSERT_EQ(alone.answer_.out.Get(0, t, 0, c), whole.answer_.out.Get(0, t, 0, 64 + c)) << t;
        ASSERT_EQ(alone.answer_.dv.Get(0, t, 0, c), whole.answer_.dv.Get(0, t, 0, 64 + c)) << t;
      }
  }
}

// ---- The normalizer ----

TEST(CudaNormaliser, EveryKind) {
  for (const DecayKind kind : kKinds) {
    if (kSlow && !IsPerToken(kind)) continue;
    for (const bool sliced : {false, true}) {
      if (kSlow && sliced) continue;
      ProblemShape shape = Sliced(kind);
      if (!sliced) shape.dim_k = shape.dim_v = 40;
      shape.heads = DecayHeads(kind);
      shape.norm = true;
      ExpectGradients(shape);
    }
  }
}

TEST(CudaNormaliser, SharedHeadsSegmentsAndDocuments) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : kKinds) {
    ProblemShape shape = {.batch = 2, .seq_len = 300, .heads = 2, .dim_k = 24, .dim_v = 40};
    shape.kind = kind;
    shape.norm = shape.key_scale = shape.odd_strides = true;
    shape.k_heads = shape.decay_heads = 1;
    shape.num_segments = 2;
    shape.document_starts = {100, 300, 450};
    ExpectGradients(shape);
  }
}

// The mean of ones is one: outputs and divisors sum the same weights for all blocks. Both are sums
// of bf16 products of weights. The roundings of a hundred tokens, 2^-9 each, average to less than
// one of them. The output is rounded once more.
TEST(CudaNormaliser, ConstantValuesComeOutAsTheyAre) {
  for (const DecayKind kind : kKinds) {
    if (kSlow && kind != DecayKind::kPerToken) continue;
    for (const HeadDims& dims : {HeadDims{40, 136}, HeadDims{72, 40}, HeadDims{100, 128}}) {
      if (kSlow && dims.k != 40) continue;
      ProblemShape shape = {.seq_len = kSlow ? 20 : 150, .dim_k = dims.k, .dim_v = dims.v};
      shape.kind = kind;
      shape.norm = shape.key_scale = true;
      shape.states = false;
      shape.document_starts = {10, kSlow ? 17 : 70};
      if (dims.v < 128) shape.block = {64, 64};
      SCOPED_TRACE(shape.Name());
      Problem problem(shape);
      for (int t = 0; t < shape.seq_len; ++t)
        for (int h = 0; h < shape.heads; ++h) {
          problem.key_scale_.Set(0, t, h, 0, std::abs(problem.key_scale_.Get(0, t, h, 0)));
          for (int c = 0; c < dims.v; ++c) problem.v_.Set(0, t, h, c, 1);
        }
      problem.Forward();
      for (int t = 0; t < shape.seq_len; ++t)
        for (int h = 0; h < shape.heads; ++h)
          for (int c = 0; c < dims.v; ++c)
            ASSERT_NEAR(problem.answer_.out.Get(0, t, h, c), 1, 0x1p-8)
                << t << " " << h << " " << c;
    }
  }
}

// The divisors and sums of keys of a document do not depend on other documents.
TEST(CudaNormaliser, ANanInAKeyStaysInItsDocument) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  constexpr int kTokens = 200, kStart = 70;
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
    ProblemShape shape = {.seq_len = kTokens, .heads = 1, .dim_k = 24, .dim_v = 40, .kind = kind};
    shape.norm = true;
    shape.document_starts = {kStart};
    Problem clean(shape), poisoned(shape);
    for (int c = 0; c < shape.dim_k; ++c) poisoned.k_.Set(0, 20, 0, c, NAN);
    clean.Forward();
    poisoned.Forward();
    ExpectSameTokens(poisoned.answer_.out, clean.answer_.out, kStart, kTokens);
    EXPECT_EQ(poisoned.final_norm_, clean.final_norm_);
    for (int t = 0; t < kTokens; ++t)
      EXPECT_EQ(std::isnan(poisoned.denom_[t]), t >= 20 && t < kStart) << t;
  }
}

TEST(CudaNormaliser, GradientsDoNotKnowOfEarlierOutputs) {
  if (kSanitized) GTEST_SKIP() << "adds no access that other tests do not make";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerHeadChannel})
    ExpectGradientsKnowLaterOutputsOnly(
        {.seq_len = 70, .heads = 1, .dim_k = 40, .dim_v = 40, .kind = kind, .norm = true}, 40);
}

// The mean of the values cancels in all gradients for any number of visible tokens, so the bounds
// are those of values without a mean. A decay per head is excluded, because its gradient over 500
// tokens may cancel to the size of its errors. Its kernels are those of a decay per token.
TEST(CudaNormaliser, ValuesOfAnyMean) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kNone, DecayKind::kPerHeadChannel, DecayKind::kPerToken,
                               DecayKind::kPerTokenChannel})
    for (const double mean : {1.0, 4.0})
      for (const Strength strength : {Strength::kMild, Strength::kNearOne}) {
        if (kSanitized && (mean != 4 || strength != Strength::kMild)) continue;
        ProblemShape shape = {.seq_len = kSanitized ? 80 : 500, .dim_k = 40, .dim_v = 56};
        shape.kind = kind;
        shape.strength = strength;
        shape.norm = shape.key_scale = true;
        shape.v_mean = mean;
        ExpectGradients(shape);
        shape.states = false;  // The first tokens see few others.
        ExpectGradients(shape);
      }
}

TEST(CudaNormaliser, MeansOfSharedHeadsOfRowsAndOfSlices) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
    ProblemShape shape = Sliced(kind);
    shape.batch = 2;
    shape.heads = 4;
    shape.q_heads = 1;
    shape.v_heads = 2;
    shape.norm = true;
    shape.v_mean = 4;
    ExpectGradients(shape);
    shape = {.seq_len = 200, .heads = 2, .dim_k = 24, .dim_v = 40, .kind = kind, .norm = true};
    shape.v_mean = 4;
    shape.odd_strides = true;
    shape.num_segments = 2;
    shape.document_starts = {0, 10, 80};
    shape.cu_seqlens = {0, 0, 63, 128, 200};
    ExpectGradients(shape);
  }
}

// eps reduces the mean by the same factor as the sums of keys.
TEST(CudaNormaliser, EpsAsLargeAsTheSumsOfKeys) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  ProblemShape shape = {.seq_len = 100, .dim_k = 40, .dim_v = 56, .norm = true, .v_mean = 4};
  shape.norm_eps = 50;
  ExpectGradients(shape);
}

TEST(CudaNormaliser, GradientOfOnlyItsState) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  Problem both({.seq_len = 80, .heads = 1, .dim_k = 24, .dim_v = 40, .norm = true, .v_mean = 1});
  both.Forward(/*with_checkpoints=*/true);
  both.Backward();
  const std::vector<float> want = both.dinitial_norm_;
  std::fill(both.dinitial_norm_.begin(), both.dinitial_norm_.end(), std::nanf(""));
  DecayAttentionGradArgs grads = both.GradArgs();
  grads.forward.workspace = both.workspace_.data();
  grads.dinitial_state = nullptr;
  cuda::Backward(grads, both.Plan(), nullptr);
  EXPECT_EQ(both.dinitial_norm_, want);
}

// The mean is computed per row and head, and must not carry a NaN to other documents.
TEST(CudaNormaliser, ANanStaysInItsDocument) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
    constexpr int kTokens = 100, kStart = 70;
    ProblemShape shape = {.seq_len = kTokens, .heads = 2, .dim_k = 24, .dim_v = 40, .kind = kind};
    shape.norm = true;
    shape.v_mean = 1;
    shape.document_starts = {kStart};
    Problem clean(shape), poisoned(shape);
    for (int c = 0; c < shape.dim_v; ++c) poisoned.v_.Set(0, 20, 0, c, c % 2 == 0 ? NAN : INFINITY);
    for (Problem* problem : {&clean, &poisoned}) {
      problem->Forward(/*with_checkpoints=*/true);
      problem->Backward();
    }
    const Answer &got = poisoned.answer_, &want = clean.answer_;
    for (const auto& [a, b] : {std::pair{&got.dq, &want.dq}, std::pair{&got.dk, &want.dk},
                               std::pair{&got.dv, &want.dv}}) {
      Errors other_document;  // The mean of the row differs, so bits may differ.
      for (int t = 0; t < kTokens; ++t)
        for (int c = 0; c < a->width(); ++c) {
          ASSERT_EQ(a->Get(0, t, 1, c), b->Get(0, t, 1, c)) << t;  // The other head.
          if (t >= kStart) other_document.Add(a->Get(0, t, 0, c), b->Get(0, t, 0, c));
        }
      EXPECT_LE(other_document.Rms(), Gate(shape, "dq"));
    }
    EXPECT_TRUE(std::isnan(got.dq.Get(0, 20, 0, 0)));
  }
}

// ---- Devices ----

constexpr int kAda = 99 << 10;  // sm_86, sm_89, sm_120

// If a block has little shared memory, heads of common sizes are split into slices.
TEST(CudaSlices, DevicesOf99KiB) {
  ASSERT_EQ(setenv("HL_EMU_SHARED_BYTES", "101376", 1), 0);
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const int dim_v : {64, 128}) {
      if (kSlow && dim_v != 64) continue;
      ProblemShape shape = {.seq_len = kSlow ? 20 : 80, .heads = 1, .dim_k = 128, .dim_v = dim_v};
      shape.kind = kind;
      shape.shared_bytes = kAda;
      ExpectGradients(shape);
    }
  unsetenv("HL_EMU_SHARED_BYTES");
}

// The largest blocks with the normalizer, with one stage and with two.
TEST(CudaNormaliser, BlocksOf128) {
  for (const char* const shared_bytes : {"166912", "232448"}) {  // sm_80; sm_90 and sm_100.
    ASSERT_EQ(setenv("HL_EMU_SHARED_BYTES", shared_bytes, 1), 0);
    for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
      for (const int dim : {100, 128}) {
        if (kSlow && dim != 100) continue;
        ProblemShape shape = {.seq_len = kSlow ? 70 : 150, .heads = 3, .kind = kind, .norm = true};
        shape.dim_k = shape.dim_v = dim;
        shape.block = {128, 128};
        shape.shared_bytes = std::atoi(shared_bytes);
        shape.v_mean = 1;
        shape.states = false;  // With few draws, gradients may cancel by chance.
        ExpectGradients(shape);
      }
    unsetenv("HL_EMU_SHARED_BYTES");
  }
}

TEST(CudaSlices, PlanOfALargerDevice) {
  Problem problem({.seq_len = 10, .heads = 1, .dim_k = 128, .dim_v = 128, .block_v = 128});
  ASSERT_EQ(setenv("HL_EMU_SHARED_BYTES", "101376", 1), 0);
  EXPECT_HL_ERROR(problem.Forward(), ExitCode::kUsage, "forward in blocks of 128 x 128: ",
                  "bytes of shared memory, but a block has 101376. Make the plan for this device.");
  unsetenv("HL_EMU_SHARED_BYTES");
}

TEST(CudaSlices, BlocksThatAreNotCompiled) {
  Problem problem({.seq_len = 10, .heads = 1, .block = {64, 96}});
  EXPECT_HL_ERROR(problem.Forward(), ExitCode::kUsage, "blocks of (64, 96) of (K, V)",
                  "(64, 64) (64, 128) (128, 64) (128, 128)");
}

}  // namespace
}  // namespace halflife::kernels::test
