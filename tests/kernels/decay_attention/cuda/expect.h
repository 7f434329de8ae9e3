// Error bounds for the tests of decay attention's CUDA kernels, and functions that compare a
// problem with the oracle.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/decay_attention/cuda/problem.h"
#include "kernels/decay_attention/same_bits.h"

namespace halflife::kernels::test {

// Under ThreadSanitizer each thread of a kernel is a fiber, which is slow, so tests run fewer
// sizes.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kSlow = true;
#else
inline constexpr bool kSlow = false;
#endif

// For tests of values. Other tests run the same accesses under a sanitizer.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kSlow;
#endif

// Returns the factor on a bound if the scan over a column of ones and the scan over V both
// contribute. Their gradients are subtracted: for random problems with positive keys and queries,
// the parts are 1.9 and 1.6 times as large as dq in the root mean square, so the error is
// sqrt(1.9^2 + 1.6^2) times that of one part. The gradient of the ones is linear in out. The bound
// of out is 5e-3, that of a state 4e-3: sqrt(5^2 + 4^2) / 4.
inline double NormaliserFactor(const std::string& name) {
  if (name == "dinitial_norm") return 1.6;
  for (const char* const both : {"dq", "dk", "dlog_decay", "dlambda", "dkey_scale"})
    if (name == both) return 2.5;
  return 1;
}

// Returns the bound on the relative root mean square error of an array. bf16: from rounded operands
// and outputs. fp32 token by token: from sums over a few hundred tokens.
//
// fp32 on tensor cores, with two terms per operand (kernels/common/cuda/tiles.cuh): the rounding of
// hi is uniform in +-2^-8 of the number's power of two, which is 2^-8 / sqrt(3) = 2.3e-3 in the
// root mean square, or e = 1.5e-3 of a number whose logarithm is uniform. The rounding of lo is e^2
// = 2.4e-6 of the number, and lo lo, which is left out, is e^2 of a product. All are independent. A
// result has up to 9: two or three chained products with three each, and S or R in a checkpoint or
// scaled. sqrt(9) x 2.4e-6 = 7.1e-6, and a margin for small tensors. Gradients of decays subtract
// such results. That of a constant decay is one sum over all tokens whose terms cancel, up to 6
// times as far as those of a result (docs/kernels.md#accuracy-of-the-two-routes).
inline double Gate(const ProblemShape& shape, const std::string& name) {
  const bool is_decay = name == "dlog_decay" || name == "dlambda" || name == "dkey_scale";
  const double factor = shape.norm && !shape.simt ? NormaliserFactor(name) : 1;
  if (shape.dtype == DType::kF32) {
    if (shape.simt) return is_decay ? 4e-6 : 2e-6;
    return factor * 8e-6 * (name == "dlambda" ? 6 : is_decay ? 2 : 1);
  }
  if (is_decay) return factor * 6e-3;
  return factor * (name == "out" || name == "dv" ? 5e-3 : 4e-3);
}

inline void ExpectClose(const ProblemShape& shape, const Problem::Report& report,
                        double factor = 1) {
  for (const auto& [name, error] : report.errors)
    EXPECT_LE(error, factor * Gate(shape, name)) << name << " of " << shape.Name();
}

// The types of operands and, for fp32, both of its routes.
struct OperandRoute {
  DType dtype;
  bool simt;
};
inline constexpr OperandRoute kOperandRoutes[] = {
    {DType::kBF16, false}, {DType::kF32, false}, {DType::kF32, true}};

// Returns lengths around base blocks (8 tokens), tiles (16) and chunks (64).
inline std::vector<int> Lengths() {
  if (kSlow) return {1, 17, 63, 64, 65};
  return {1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 130, 300};
}

// All classes of decays up to 1. Growth has a separate test, because it may only span one chunk.
inline constexpr Strength kAdversarial[] = {Strength::kOne,    Strength::kNearOne,
                                            Strength::kStrong, Strength::kVanish,
                                            Strength::kResets, Strength::kMixed};

// The number of heads for strengths that are drawn at random. With one decay per head, one head
// would be a single draw.
constexpr int DecayHeads(DecayKind kind) { return kind == DecayKind::kPerHead ? 3 : 1; }

struct HeadDims {
  int k, v;
};
// One size for each forward instance whose blocks have 128 columns of V, padded and full.
inline constexpr HeadDims kWideHeads[] = {{40, 100}, {64, 128}, {100, 100}, {128, 128}};

inline void ExpectForward(const ProblemShape& shape) {
  SCOPED_TRACE(shape.Name());
  Problem problem(shape);
  problem.Forward();
  ExpectClose(shape, problem.Compare(false));
}
inline void ExpectGradients(const ProblemShape& shape) {
  SCOPED_TRACE(shape.Name());
  Problem problem(shape);
  problem.Forward(/*with_checkpoints=*/true);
  problem.Backward();
  ExpectClose(shape, problem.Compare(true));
}

// Expects that tokens [begin, end) of the first row have equal bits.
inline void ExpectSameTokens(const Tensor& a, const Tensor& b, int begin, int end) {
  for (int t = begin; t < end; ++t)
    for (int h = 0; h < a.heads(); ++h)
      for (int c = 0; c < a.width(); ++c) ASSERT_EQ(a.Get(0, t, h, c), b.Get(0, t, h, c)) << t;
}

// Expects that a changed gradient of one token's output affects only its own query and the keys,
// values and decays up to this token.
inline void ExpectGradientsKnowLaterOutputsOnly(const ProblemShape& shape, int token) {
  SCOPED_TRACE(Concat(shape.Name(), " token ", token));
  Problem before(shape), after(shape);
  for (int h = 0; h < shape.heads; ++h)
    for (int c = 0; c < shape.dim_v; ++c) after.dout_.Set(0, token, h, c, 5);
  for (Problem* problem : {&before, &after}) {
    problem->Forward(/*with_checkpoints=*/true);
    problem->Backward();
  }
  const Answer &a = before.answer_, &b = after.answer_;
  const int T = shape.seq_len;
  ExpectSameTokens(a.dq, b.dq, 0, token);
  ExpectSameTokens(a.dq, b.dq, token + 1, T);
  ExpectSameTokens(a.dk, b.dk, token + 1, T);
  ExpectSameTokens(a.dv, b.dv, token + 1, T);
  if (IsPerToken(shape.kind)) ExpectSameTokens(a.dlog_decay, b.dlog_decay, token + 1, T);
  EXPECT_NE(a.dq.Get(0, token, 0, 0), b.dq.Get(0, token, 0, 0));
  EXPECT_NE(a.dk.Get(0, token, 0, 0), b.dk.Get(0, token, 0, 0));
  EXPECT_NE(a.dv.Get(0, token, 0, 0), b.dv.Get(0, token, 0, 0));
}

// Checks which heads the wgmma kernels support with decays per channel. takes(shape) returns
// whether the plan of the shape has such a kernel.
template <typename Takes>
void ExpectTakesHeadsThatFillTheirBlocks(const Takes& takes) {
  for (const int dim_k : {64, 128})
    for (const int dim_v : {64, 128, 256, 512})
      EXPECT_TRUE(takes({.batch = 3, .dim_k = dim_k, .dim_v = dim_v})) << dim_k << " x " << dim_v;
  EXPECT_FALSE(takes({.dim_k = 256, .dim_v = 128})) << "scores of two slices of K are not added";
  EXPECT_FALSE(takes({.dim_k = 96}));
  EXPECT_FALSE(takes({.dim_v = 200}));
  EXPECT_FALSE(takes({.norm = true}));
  EXPECT_FALSE(takes({.odd_strides = true}));
}

inline void ExpectTwoRunsAgreeInEveryBit(const ProblemShape& shape) {
  Problem first(shape), second(shape);
  for (Problem* problem : {&first, &second}) {
    problem->Forward(/*with_checkpoints=*/true);
    problem->Backward();
  }
  ExpectSameBits(first.Collect(true), second.Collect(true));
}

}  // namespace halflife::kernels::test
