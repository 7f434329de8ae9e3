// The exponential of the fused loops, and SwiGLU.
#include <cmath>
#include <limits>

#include "kernels/cpu_math.h"
#include "kernels/gradient_check.h"
#include "kernels/swiglu/swiglu.h"

namespace halflife::kernels {
namespace {

using test::Normal;

TEST(ExpTest, TwoUlpsOverTheWholeRange) {
  for (double x = -86.9; x < 88.0; x += 0.00173) {
    const auto rounded = static_cast<float>(x);
    const double want = std::exp(static_cast<double>(rounded));
    ASSERT_NEAR(Exp(rounded) / want, 1.0, 2.5e-7) << "at " << x;
  }
}

TEST(ExpTest, Edges) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-kInfinity), 0.0f);
  EXPECT_EQ(Exp(-1000.0f), 0.0f);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_EQ(Exp(100.0f), kInfinity);
  EXPECT_TRUE(std::isnan(Exp(std::nanf(""))));
  EXPECT_EQ(Sigmoid(-kInfinity), 0.0f);
  EXPECT_EQ(Sigmoid(kInfinity), 1.0f);
}

TEST(SwiGluTest, IsTheFormula) {
  const at::Tensor gate = Normal({40}, 1) * 4, up = Normal({40}, 2);
  EXPECT_TRUE(test::Close(SwiGlu(gate, up), gate / (1 + (-gate).exp()) * up, 1e-14));
}

TEST(SwiGluTest, FusedLoopsMatchFp64) {
  for (const int64_t count : {1, 31, 70000}) {  // odd ends, and more than one block of threads
    SCOPED_TRACE(count);
    test::ExpectFloatMatchesDouble([](const auto& in) { return SwiGlu(in[0], in[1]); },
                                   {Normal({count}, 1) * 4, Normal({count}, 2)}, 1e-6);
  }
}

TEST(SwiGluTest, GradientsAreFiniteDifferences) {
  test::ExpectFiniteDifferences([](const auto& in) { return SwiGlu(in[0], in[1]).square().sum(); },
                                {Normal({12}, 1), Normal({12}, 2)});
}

TEST(SwiGluTest, NonContiguousOperands) {
  const at::Tensor gate = Normal({6, 10}, 1, at::kFloat), up = Normal({10, 6}, 2, at::kFloat);
  EXPECT_TRUE(test::BitEqual(SwiGlu(gate, up.t()), SwiGlu(gate, up.t().contiguous())));
}

}  // namespace
}  // namespace halflife::kernels
