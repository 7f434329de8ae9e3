// Learned decays equal their formula, with bounds, and NaN is preserved.
#include "ops/rows/decay_gates.h"

#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "ops/random_tensors.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Normal;

TEST(LearnedDecayTest, IsTheFormula) {
  const at::Tensor p = Normal({12}, 1);
  EXPECT_TRUE(test::Close(NegativeExp(p), -p.exp(), 1e-15));
  const at::Tensor y = HeadOffsetDecay(p, 4, {.scale = 0.5, .most = -0.01});
  for (int64_t h = 0; h < 4; ++h) {
    const auto base = static_cast<double>(static_cast<float>(-std::exp2(-4.0 / (1.0 + h))));
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_NEAR(y[h][i].item<double>(), std::min(base - 0.5 * p[3 * h + i].item<double>(), -0.01),
                  1e-15);
  }
}

// Values beyond the bound have no gradient. A NaN is not clamped.
TEST(LearnedDecayTest, BoundAndNan) {
  const at::Tensor p = at::tensor({-3.0f, 3.0f, std::nanf("")}).requires_grad_();
  const at::Tensor y = HeadOffsetDecay(p, 1, {.scale = 1, .most = 0});
  EXPECT_EQ(y[0][0].item<float>(), 0);
  EXPECT_EQ(y[0][1].item<float>(), -3.5f);
  EXPECT_TRUE(std::isnan(y[0][2].item<float>()));
  const at::Tensor dp = torch::autograd::grad({y.sum()}, {p})[0];
  EXPECT_EQ(dp[0].item<float>(), 0);
  EXPECT_EQ(dp[1].item<float>(), -1);
}

TEST(LearnedDecayTest, BadInput) {
  EXPECT_HL_ERROR(HeadOffsetDecay(Normal({10}, 1), 3, {}), ExitCode::kInternal,
                  "HeadOffsetDecay got p [10] fp64 on cpu for 3 heads",
                  "Use a multiple of num_heads elements.");
  EXPECT_HL_ERROR(NegativeExp(Normal({10}, 1).to(at::kHalf)), ExitCode::kUsage,
                  "NegativeExp does not support fp16. Use fp32, bf16 or fp64.");
}

}  // namespace
}  // namespace halflife::ops
