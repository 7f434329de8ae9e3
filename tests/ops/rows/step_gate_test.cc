// The step sizes and decays of state-space layers equal their formula over the whole range.
#include "ops/rows/step_gate.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Normal;
using Inputs = std::vector<at::Tensor>;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// step + 3 log_decay, so that the gradients of both are tested.
at::Tensor Both(const Inputs& in, const StepGateConfig& config) {
  const auto [step, log_decay] = StepGate({.x = in[0], .bias = in[1], .a_log = in[2]}, config);
  return step + 3 * log_decay;
}

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

// 2^-24 of steps up to 12 and decays ten times as large, with about five roundings. The gradients
// of bias and a_log sum 150 rows.
TEST(StepGateTest, FusedLoopsMatchFp64) {
  for (const int64_t dim : {1, 16, 300}) {
    SCOPED_TRACE(dim);
    for (const StepGateConfig& config : {StepGateConfig{}, {.least = 0.1, .most = 2}})
      test::ExpectFloatMatchesDouble(
          [&](const auto& in) { return Both(in, config); },
          {Normal({150, dim}, 1) * 3, Normal({dim}, 2), Normal({dim}, 3)}, 3e-6);
  }
}

TEST(StepGateTest, GradientsAreFiniteDifferences) {
  const at::Tensor weights = Normal({4, 6}, 9);
  for (const StepGateConfig& config : {StepGateConfig{}, {.least = 0.3, .most = 1.5}})
    test::ExpectFiniteDifferences(
        [&](const auto& in) { return (Both(in, config) * weights).sum(); },
        {Normal({4, 6}, 1), Normal({6}, 2), Normal({6}, 3)});
}

// With bf16 inputs, the results and the gradients of bias and a_log are fp32, and dx is rounded
// once.
TEST(StepGateTest, Bf16IsWidened) {
  for (const int64_t dim : {1, 31, 128}) {
    SCOPED_TRACE(dim);
    const at::Tensor x = (Normal({150, dim}, 1) * 3).to(at::kBFloat16), dy = Normal({150, dim}, 4);
    const at::Tensor bias = Normal({dim}, 2).to(at::kFloat),
                     a_log = Normal({dim}, 3).to(at::kFloat);
    const auto run = [&](at::ScalarType dtype) {
      const bool wide = dtype == at::kDouble;
      Inputs in = {x.to(dtype), wide ? bias.to(dtype) : bias.clone(),
                   wide ? a_log.to(dtype) : a_log.clone()};
      for (at::Tensor& leaf : in) leaf.requires_grad_();
      const at::Tensor y = Both(in, {.least = 0.05});
      Inputs results = {y};
      for (const auto& grad : torch::autograd::grad({y}, in, {dy.to(y.scalar_type())}))
        results.push_back(grad);
      return results;
    };
    const auto narrow = run(at::kBFloat16), wide = run(at::kDouble);
    EXPECT_EQ(narrow[0].scalar_type(), at::kFloat);
    EXPECT_EQ(narrow[1].scalar_type(), at::kBFloat16);
    for (const size_t i : {0, 2, 3}) EXPECT_TRUE(test::Close(narrow[i], wide[i], 3e-6)) << i;
    EXPECT_TRUE(((narrow[1].to(at::kDouble) - wide[1]).abs() <= 0x1p-8 * wide[1].abs() + 3e-6)
                    .all()
                    .item<bool>());
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

TEST(StepGateTest, StridedRowsNoRowsAndThreads) {
  const at::Tensor wide = Normal({60, 40}, 1, at::kFloat), bias = Normal({20}, 2, at::kFloat),
                   a_log = Normal({20}, 3, at::kFloat);
  const auto run = [&](const at::Tensor& rows) {
    const at::Tensor x = rows.detach().requires_grad_();
    const at::Tensor y = Both({x, bias, a_log}, {.least = 0.2});
    return Inputs{y, torch::autograd::grad({y.square().sum()}, {x})[0]};
  };
  const Inputs strided = run(wide.narrow(1, 10, 20)), dense = run(wide.narrow(1, 10, 20).clone());
  for (size_t i = 0; i < dense.size(); ++i) EXPECT_TRUE(test::BitEqual(strided[i], dense[i])) << i;
  const at::Tensor some_bias = bias.clone().requires_grad_();
  const at::Tensor none = Both({wide.narrow(0, 0, 0).narrow(1, 0, 20), some_bias, a_log}, {});
  EXPECT_EQ(none.numel(), 0);
  EXPECT_TRUE(torch::autograd::grad({none.sum()}, {some_bias})[0].eq(0).all().item<bool>());
  test::ExpectSameBitsWithThreads([] {
    Inputs in = {Normal({700, 48}, 1, at::kFloat), Normal({48}, 2, at::kFloat),
                 Normal({48}, 3, at::kFloat)};
    for (at::Tensor& leaf : in) leaf.requires_grad_();
    return torch::autograd::grad({Both(in, {})}, in, {Normal({700, 48}, 4, at::kFloat)});
  });
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
