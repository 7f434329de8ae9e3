// The step sizes and decays of state-space layers equal their formula over the whole range.
// row_operations_test.cc has their other properties.
#include "ops/rows/state_space_gates.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/random_tensors.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Normal;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Small steps keep all digits: an exponential and a logarithm of 2 ulp each.
TEST(StepGateTest, FewUlpsOverTheWholeRange) {
  const at::Tensor x = at::arange(-85, 90, 0.00373, at::kFloat), zero = at::zeros({1}, at::kFloat);
  const at::Tensor y = StepGate({.x = x.unsqueeze(1), .bias = zero, .a_log = zero}, {}).step;
  const auto *at = x.const_data_ptr<float>(), *got = y.const_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double z = at[i];
    const double want = std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
    ASSERT_NEAR(got[i] / want, 1.0, 5e-7) << "at " << z;
  }
}

TEST(StepGateTest, IsTheFormula) {
  const at::Tensor x = Normal({30, 5}, 1) * 3, bias = Normal({5}, 2), a_log = Normal({5}, 3);
  const auto [step, log_decay] =
      StepGate({.x = x, .bias = bias, .a_log = a_log}, {.least = 0.1, .most = 2});
  int below = 0, above = 0;
  for (int64_t row = 0; row < 30; ++row) {
    for (int64_t i = 0; i < 5; ++i) {
      const double dt = std::log1p(std::exp(x[row][i].item<double>() + bias[i].item<double>()));
      const double want = std::clamp(dt, 0.1, 2.0);
      below += dt<0.1, above += dt> 2;
      EXPECT_NEAR(step[row][i].item<double>(), want, 1e-14);
      EXPECT_NEAR(log_decay[row][i].item<double>(), -std::exp(a_log[i].item<double>()) * want,
                  1e-13);
    }
  }
  EXPECT_GT(below, 0);
  EXPECT_GT(above, 0);
}

TEST(StepGateTest, LargeLogitsKeepTheirExponential) {
  const at::Tensor zero = at::zeros({1}, at::kDouble);
  for (const double z : {-100.0, -25.0, 21.0, 25.0, 39.0, 100.0}) {
    const at::Tensor x = at::full({1, 1}, z, at::kDouble);
    const double want = std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
    const double got = StepGate({.x = x, .bias = zero, .a_log = zero}, {}).step.item<double>();
    EXPECT_NEAR(got / want, 1, 1e-14) << z;
  }
}

// Very large logits give steps without NaN. A NaN stays NaN, also with limits.
TEST(StepGateTest, FarLogitsAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::tensor({-200.0f, 200.0f, -infinity, infinity}).requires_grad_();
  const at::Tensor zero = at::zeros({4}, at::kFloat);
  const auto [step, log_decay] = StepGate({.x = x, .bias = zero, .a_log = zero}, {});
  EXPECT_TRUE(step.equal(at::tensor({0.0f, 200.0f, 0.0f, infinity})));
  EXPECT_TRUE(log_decay.equal(at::tensor({0.0f, -200.0f, 0.0f, -infinity})));
  const at::Tensor dx = torch::autograd::grad({step.sum()}, {x})[0];
  EXPECT_TRUE(dx.equal(at::tensor({0.0f, 1.0f, 0.0f, 1.0f})));
  const at::Tensor nan = at::tensor({std::nanf("")}), one_zero = at::zeros({1}, at::kFloat);
  for (const double most : {1.0, kNoLimit})
    EXPECT_TRUE(StepGate({.x = nan, .bias = one_zero, .a_log = one_zero}, {.most = most})
                    .step.isnan()
                    .item<bool>());
}

TEST(StepGateTest, BadInput) {
  const at::Tensor x = Normal({6, 10}, 1, at::kFloat), bias = Normal({10}, 2, at::kFloat);
  EXPECT_HL_ERROR(StepGate({.x = x, .bias = bias.narrow(0, 0, 5), .a_log = bias}, {}),
                  ExitCode::kInternal, "StepGate got x [6, 10] fp32 on cpu with bias [5] fp32",
                  "Use x [..., H], bias [H] and a_log [H] on one device.");
  EXPECT_HL_ERROR(StepGate({.x = x.to(at::kHalf), .bias = bias, .a_log = bias}, {}),
                  ExitCode::kUsage, "StepGate does not support fp16. Use fp32, bf16 or fp64.");
}

}  // namespace
}  // namespace halflife::ops
