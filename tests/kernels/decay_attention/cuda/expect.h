// What the tests of decay attention's CUDA kernels share: the gates, and runs of a problem against
// the oracle.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/decay_attention/cuda/problem.h"
#include "kernels/decay_attention/same_bits.h"

namespace halflife::kernels::test {

// A thread of a kernel is a fiber of the thread sanitizer, which is slow: tests then run fewer
// sizes.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kSlow = true;
#else
inline constexpr bool kSlow = false;
#endif

// For tests of values alone, whose accesses other tests show to a sanitizer.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kSlow;
#endif

// What the gates of the scans over a column of ones and over V become together. Gradients that both
// give are differences: of random problems with keys and queries above 0 the parts are 1.9 and 1.6
// times as large as dq in the root mean square, so that their errors are sqrt(1.9^2 + 1.6^2) times
// those of a part. The gradient of the ones alone is linear in out, whose gate is 5e-3, beside the
// 4e-3 of a state: sqrt(5^2 + 4^2) / 4.
inline double NormaliserFactor(const std::string& name) {
  if (name == "dinitial_norm") return 1.6;
  for (const char* const both : {"dq", "dk", "dlog_decay", "dlambda", "dkey_scale"})
    if (name == both) return 2.5;
  return 1;
}

// Relative root mean square errors. bf16: of rounded operands and outputs; fp32: of sums over a few
// hundred tokens.
inline double Gate(const ProblemShape& shape, const std::string& name) {
  const bool is_decay = name == "dlog_decay" || name == "dlambda" || name == "dkey_scale";
  if (shape.dtype == DType::kF32) return is_decay ? 4e-6 : 2e-6;
  const double factor = shape.norm && !shape.simt ? NormaliserFactor(name) : 1;
  if (is_decay) return factor * 6e-3;
  return factor * (name == "out" || name == "dv" ? 5e-3 : 4e-3);
}

inline void ExpectClose(const ProblemShape& shape, const Problem::Report& report,
                        double factor = 1) {
  for (const auto& [name, error] : report.errors)
    EXPECT_LE(error, factor * Gate(shape, name)) << name << " of " << shape.Name();
}

// Around the edges of base blocks (8 tokens), tiles (16) and chunks (64).
inline std::vector<int> Lengths() {
  if (kSlow) return {1, 17, 63, 64, 65};
  return {1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 130, 300};
}

// All that a decay of up to 1 can be; growth has a test of its own, as it may fill one chunk only.
inline constexpr Strength kAdversarial[] = {Strength::kOne,    Strength::kNearOne,
                                            Strength::kStrong, Strength::kVanish,
                                            Strength::kResets, Strength::kMixed};

// Heads enough for a strength that draws at random: where a head has one decay, one would be one
// draw.
constexpr int DecayHeads(DecayKind kind) { return kind == DecayKind::kPerHead ? 3 : 1; }

struct HeadDims {
  int k, v;
};
// One of each forward instance whose blocks own 128 columns of V, padded and filled.
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

// Tokens [begin, end) of the first row agree in every bit.
inline void ExpectSameTokens(const Tensor& a, const Tensor& b, int begin, int end) {
  for (int t = begin; t < end; ++t)
    for (int h = 0; h < a.heads(); ++h)
      for (int c = 0; c < a.width(); ++c) ASSERT_EQ(a.Get(0, t, h, c), b.Get(0, t, h, c)) << t;
}

// A changed gradient of one token's output is heard by its own query and by keys, values and decays
// up to it.
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

inline void ExpectTwoRunsAgreeInEveryBit(const ProblemShape& shape) {
  Problem first(shape), second(shape);
  for (Problem* problem : {&first, &second}) {
    problem->Forward(/*with_checkpoints=*/true);
    problem->Backward();
  }
  ExpectSameBits(first.Collect(true), second.Collect(true));
}

}  // namespace halflife::kernels::test
