// The scans of fp32 operands, on tensor cores with two bf16 terms per operand, equal the oracle in
// the emulator. They share their steps with the scans of bf16 operands. The tests here cover what
// differs: loads of two terms, one stage of tiles, products and saved states of two terms.
#include "kernels/decay_attention/cuda/expect.h"

namespace halflife::kernels::test {
namespace {

constexpr DecayKind kKinds[] = {DecayKind::kNone, DecayKind::kPerHead, DecayKind::kPerHeadChannel,
                                DecayKind::kPerToken, DecayKind::kPerTokenChannel};

ProblemShape Fp32(DecayKind kind, int seq_len = 150) {
  return {.seq_len = kSlow ? 70 : seq_len, .heads = 1, .kind = kind, .dtype = DType::kF32};
}

TEST(CudaFp32Scan, KindsAndLengths) {
  for (const DecayKind kind : kKinds)
    for (const int seq_len : Lengths()) {
      if (seq_len > 130 || (kSlow && !IsPerToken(kind))) continue;
      ProblemShape shape = Fp32(kind);
      shape.seq_len = seq_len;
      shape.heads = DecayHeads(kind);
      ExpectGradients(shape);
    }
}

// Slices of K and of V, padded and full.
TEST(CudaFp32Scan, HeadDims) {
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    for (const HeadDims& dims :
         {HeadDims{37, 51}, HeadDims{128, 64}, HeadDims{64, 200}, HeadDims{256, 128}}) {
      if (kSlow && dims.k != 37) continue;
      ProblemShape shape = Fp32(kind, 70);
      shape.dim_k = dims.k;
      shape.dim_v = dims.v;
      shape.odd_strides = dims.k == 37;
      shape.key_scale = true;
      ExpectGradients(shape);
    }
}

TEST(CudaFp32Scan, AdversarialDecays) {
  for (const DecayKind kind : kKinds)
    for (const Strength strength : kAdversarial) {
      if (kind == DecayKind::kNone) continue;
      if (kSlow && (!IsPerToken(kind) || strength != Strength::kResets)) continue;
      ProblemShape shape = Fp32(kind);
      shape.heads = DecayHeads(kind);
      shape.strength = strength;
      ExpectGradients(shape);
    }
}

// Exponents are sums in fp32 in units of log2, and their rounding errors are relative errors of the
// weights. With decays per channel, each tile sums 16 equal numbers of 1.35: at most 16 x 2^-24 for
// the numbers, and half a unit for each sum, 9.6e-6 in all, which is 6.7e-6 of the tile's decay.
// The errors of four tiles have the same direction, so they add 2.7e-5 to the bound of 8e-6.
TEST(CudaFp32Scan, GrowthUpToSixtyAChunk) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : kKinds) {
    if (kind == DecayKind::kNone) continue;
    ProblemShape shape = Fp32(kind, 64);
    shape.heads = DecayHeads(kind);
    shape.strength = Strength::kGrowth;
    SCOPED_TRACE(shape.Name());
    Problem problem(shape);
    problem.Forward(/*with_checkpoints=*/true);
    problem.Backward();
    ExpectClose(shape, problem.Compare(true), (8 + 27) / 8.0);
  }
}

TEST(CudaFp32Scan, SegmentsDocumentsAndSharedHeads) {
  for (const DecayKind kind : kKinds) {
    if (kSlow && !IsPerToken(kind)) continue;
    ProblemShape shape = Fp32(kind, 600);
    shape.num_segments = 2;
    ExpectGradients(shape);
    if (kSlow) continue;
    shape.seq_len = 300;
    shape.batch = 2;
    shape.heads = 2;
    shape.q_heads = shape.k_heads = 1;
    shape.decay_heads = 1;
    shape.document_starts = {0, 100, 256, 300, 301, 500};
    ExpectGradients(shape);
    shape = Fp32(kind, 200);
    shape.cu_seqlens = {0, 0, 63, 63, 64, 128, 193, 200};
    ExpectGradients(shape);
  }
}

// The sums of keys, the values minus their mean, and the gradients of both. A checkpoint of S has
// one of the up to 9 errors of a result (expect.h). It is relative to S, which is 1 + |mean| times
// as large as the S of values without mean: sqrt(9 + (1 + |mean|)^2) / sqrt(9).
TEST(CudaFp32Scan, Normaliser) {
  for (const DecayKind kind : kKinds)
    for (const int dim_k : {40, 100}) {
      if (kSlow && (!IsPerToken(kind) || dim_k > 64)) continue;
      ProblemShape shape = Fp32(kind);
      shape.dim_k = dim_k;
      shape.dim_v = 72;
      shape.norm = shape.key_scale = true;
      shape.v_mean = dim_k == 40 ? 4 : 0;
      shape.num_segments = dim_k == 40 ? 1 : 2;
      SCOPED_TRACE(shape.Name());
      Problem problem(shape);
      problem.Forward(/*with_checkpoints=*/true);
      problem.Backward();
      ExpectClose(shape, problem.Compare(true), std::hypot(3, 1 + shape.v_mean) / 3);
    }
}

// A state over many chunks keeps its accuracy: the sums of chunks are added in fp32.
TEST(CudaFp32Scan, DecayNearOneOverManyTokens) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel}) {
    ProblemShape shape = Fp32(kind, 2048);
    shape.dim_k = shape.dim_v = 16;
    shape.strength = Strength::kNearOne;
    ExpectForward(shape);
  }
}

TEST(CudaFp32Scan, GradientsDoNotKnowOfEarlierOutputs) {
  if (kSlow) GTEST_SKIP() << "adds no kernel that other tests do not run";
  for (const DecayKind kind : {DecayKind::kPerToken, DecayKind::kPerTokenChannel})
    ExpectGradientsKnowLaterOutputsOnly(Fp32(kind, 70), 63);
}

TEST(CudaFp32Scan, TwoRunsAgreeInEveryBit) {
  ExpectTwoRunsAgreeInEveryBit(Fp32(DecayKind::kPerToken, 70));
  ExpectTwoRunsAgreeInEveryBit(Fp32(DecayKind::kPerTokenChannel, 70));
}

}  // namespace
}  // namespace halflife::kernels::test
