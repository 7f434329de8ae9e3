// The requested instruction set is used, and each set has its own kernels.
#include "kernels/common/cpu/instruction_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/error.h"
#include "kernels/common/cpu/vectorised.h"
#include "kernels/sum_of_squares/sum_of_squares_args.h"
#include "support/expect_error.h"

namespace halflife::kernels::cpu {
namespace {

using enum InstructionSet;

class InstructionSetTest : public testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("HALFLIFE_CPU_ISA");
    UseInstructionSetOfEnvironment();
  }
};

TEST_F(InstructionSetTest, TheWidestUnlessANarrowerOneIsNamed) {
  for (const InstructionSet widest : {kBaseline, kAvx2, kAvx512})
    EXPECT_EQ(ChooseInstructionSet("", widest), widest);
  EXPECT_EQ(ChooseInstructionSet("avx512", kAvx512), kAvx512);
  EXPECT_EQ(ChooseInstructionSet("avx2", kAvx512), kAvx2);
  EXPECT_EQ(ChooseInstructionSet("avx2", kAvx2), kAvx2);
  EXPECT_EQ(ChooseInstructionSet("baseline", kAvx2), kBaseline);
}

TEST_F(InstructionSetTest, NamesTheFix) {
  EXPECT_HL_ERROR(ChooseInstructionSet("avx512", kAvx2), ExitCode::kEnvironment,
                  "does not run AVX-512", "HALFLIFE_CPU_ISA=avx2");
  EXPECT_HL_ERROR(ChooseInstructionSet("avx2", kBaseline), ExitCode::kEnvironment,
                  "does not run AVX2", "HALFLIFE_CPU_ISA=baseline");
  for (const char* const word : {"AVX2", "sse2", "avx", "avx2 ", "1"})
    EXPECT_HL_ERROR(ChooseInstructionSet(word, kAvx512), ExitCode::kUsage, word, "avx512, avx2");
}

TEST_F(InstructionSetTest, FollowsTheEnvironment) {
  EXPECT_EQ(InstructionSetInUse(), UsableInstructionSets().front());
  EXPECT_EQ(UsableInstructionSets().back(), kBaseline);
  ::setenv("HALFLIFE_CPU_ISA", "baseline", 1);
  UseInstructionSetOfEnvironment();
  EXPECT_EQ(InstructionSetInUse(), kBaseline);
  ::setenv("HALFLIFE_CPU_ISA", "", 1);
  UseInstructionSetOfEnvironment();
  EXPECT_EQ(InstructionSetInUse(), UsableInstructionSets().front());
}

#ifdef __FP_FAST_FMAF
constexpr bool kBaselineFuses = true;
#else
constexpr bool kBaselineFuses = false;
#endif
// x^2 - y, where y is x^2 rounded. A fused multiply-add returns the rounding error, two separate
// operations return 0.
HL_INLINE void SubtractLoop(const float* __restrict x, float* __restrict y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * x[i] - y[i];
}

TEST_F(InstructionSetTest, LoopsAreCompiledForTheOneInUse) {
  for (const InstructionSet set : UsableInstructionSets()) {
    UseInstructionSet(set);
    std::vector<float> x(100), y(100);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = 1 + static_cast<float>(i + 1) * 0x1p-20f;
      y[i] = static_cast<float>(static_cast<double>(x[i]) * x[i]);
    }
    const std::vector<float> squares = y;
    RunVectorised([&]() HL_LAMBDA_INLINE { SubtractLoop(x.data(), y.data(), 100); });
    for (size_t i = 0; i < x.size(); ++i) {
      const float rounding = std::fma(x[i], x[i], -squares[i]);
      ASSERT_NE(rounding, 0.0f);
      EXPECT_EQ(y[i], set > kBaseline || kBaselineFuses ? rounding : 0.0f)
          << NameOf(set) << " " << i;
    }
  }
}

TEST_F(InstructionSetTest, SumsOfSquaresHaveTheSameBits) {
  std::vector<float> values(10007);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i) * 0.7f);
  const SquaresSegment segment = {.begin = 0, .count = 10007, .first_block = 0};
  std::vector<std::vector<double>> partials;
  for (const InstructionSet set : UsableInstructionSets()) {
    UseInstructionSet(set);
    partials.emplace_back(segment.num_blocks());
    SumOfSquares({.values = values.data(),
                  .segments = &segment,
                  .num_segments = 1,
                  .partials = partials.back().data()},
                 0, segment.num_blocks());
    EXPECT_EQ(partials.back(), partials.front()) << NameOf(set);
  }
}

}  // namespace
}  // namespace halflife::kernels::cpu
