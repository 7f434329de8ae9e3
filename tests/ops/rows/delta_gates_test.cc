// The gates of delta rule layers equal their formulas over the whole range of logits.
#include "ops/rows/delta_gates.h"

#include <ATen/ops/arange.h>
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

double Logistic(double x) { return 1 / (1 + std::exp(-x)); }

// Small decays keep all digits: an exponential and a logarithm of 2 ulp each.
TEST(DeltaGatesTest, FewUlpsOverTheWholeRange) {
  const at::Tensor x = at::arange(-85, 90, 0.00373, at::kFloat), zero = at::zeros({1}, at::kFloat);
  const auto [log_decay, beta] = DeltaGates(
      {.x = x.unsqueeze(1), .bias = zero, .a_log = zero, .b = x.unsqueeze(1)}, {.beta_scale = 2});
  const auto* const logits = x.const_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double z = logits[i];
    const double softplus = std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
    ASSERT_NEAR(log_decay.const_data_ptr<float>()[i] / -softplus, 1.0, 5e-7) << "at " << z;
    ASSERT_NEAR(beta.const_data_ptr<float>()[i] / (2 * Logistic(z)), 1.0, 5e-7) << "at " << z;
  }
}

// Three heads of two decays each, with and without a bound.
TEST(DeltaGatesTest, IsTheFormula) {
  const at::Tensor x = Normal({30, 6}, 1) * 3, bias = Normal({6}, 2), a_log = Normal({3}, 3),
                   b = Normal({30, 3}, 4);
  for (const double bound : {0.0, -5.0}) {
    const auto [log_decay, beta] =
        DeltaGates({.x = x, .bias = bias, .a_log = a_log, .b = b}, {.bound = bound});
    for (int64_t row = 0; row < 30; ++row) {
      for (int64_t i = 0; i < 6; ++i) {
        const double z = x[row][i].item<double>() + bias[i].item<double>();
        const double rate = std::exp(a_log[i / 2].item<double>());
        const double want =
            bound < 0 ? bound * Logistic(rate * z) : -rate * std::log1p(std::exp(z));
        EXPECT_NEAR(log_decay[row][i].item<double>(), want, 1e-13);
      }
      for (int64_t i = 0; i < 3; ++i)
        EXPECT_NEAR(beta[row][i].item<double>(), Logistic(b[row][i].item<double>()), 1e-15);
    }
  }
}

// Very large logits fully open or close the gates without NaN. A NaN stays NaN.
TEST(DeltaGatesTest, FarLogitsAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::tensor({-200.0f, 200.0f, -infinity, infinity}).requires_grad_();
  const at::Tensor zero = at::zeros({4}, at::kFloat);
  const auto [free, beta] = DeltaGates({.x = x, .bias = zero, .a_log = zero, .b = x}, {});
  EXPECT_TRUE(free.equal(at::tensor({0.0f, -200.0f, 0.0f, -infinity})));
  EXPECT_TRUE(beta.equal(at::tensor({0.0f, 1.0f, 0.0f, 1.0f})));
  const at::Tensor dx = torch::autograd::grad({free.sum()}, {x})[0];
  EXPECT_TRUE(dx.equal(at::tensor({0.0f, -1.0f, 0.0f, -1.0f})));
  const at::Tensor bounded =
      DeltaGates({.x = x, .bias = zero, .a_log = zero, .b = {}}, {.bound = -5}).log_decay;
  EXPECT_TRUE(bounded.equal(at::tensor({0.0f, -5.0f, 0.0f, -5.0f})));
  EXPECT_TRUE(torch::autograd::grad({bounded.sum()}, {x})[0].eq(0).all().item<bool>());
  const at::Tensor nan = at::tensor({std::nanf("")}), one_zero = at::zeros({1}, at::kFloat);
  for (const double bound : {0.0, -5.0}) {
    const auto [log_decay, of_nan] =
        DeltaGates({.x = nan, .bias = one_zero, .a_log = one_zero, .b = nan}, {.bound = bound});
    EXPECT_TRUE(log_decay.isnan().item<bool>());
    EXPECT_TRUE(of_nan.isnan().item<bool>());
  }
}

// Columns of a wider matrix have the bits of a dense copy. One output may be absent.
TEST(DeltaGatesTest, StridedRowsAndSingleOutputs) {
  const at::Tensor wide = Normal({60, 40}, 1, at::kFloat), bias = Normal({16}, 2, at::kFloat),
                   a_log = Normal({4}, 3, at::kFloat);
  const at::Tensor x = wide.narrow(1, 10, 16), b = wide.narrow(1, 30, 4);
  const auto strided = DeltaGates({.x = x, .bias = bias, .a_log = a_log, .b = b}, {}),
             dense = DeltaGates({.x = x.clone(), .bias = bias, .a_log = a_log, .b = b.clone()}, {}),
             no_beta = DeltaGates({.x = x, .bias = bias, .a_log = a_log, .b = {}}, {}),
             no_decay = DeltaGates({.x = {}, .bias = {}, .a_log = {}, .b = b}, {});
  EXPECT_TRUE(test::BitEqual(strided.log_decay, dense.log_decay));
  EXPECT_TRUE(test::BitEqual(strided.beta, dense.beta));
  EXPECT_TRUE(test::BitEqual(no_beta.log_decay, dense.log_decay));
  EXPECT_FALSE(no_beta.beta.defined());
  EXPECT_TRUE(test::BitEqual(no_decay.beta, dense.beta));
  EXPECT_FALSE(no_decay.log_decay.defined());
}

TEST(DeltaGatesTest, BadInput) {
  const at::Tensor x = Normal({6, 10}, 1, at::kFloat), bias = Normal({10}, 2, at::kFloat);
  EXPECT_HL_ERROR(DeltaGates({.x = {}, .bias = {}, .a_log = {}, .b = {}}, {}), ExitCode::kInternal,
                  "DeltaGates got neither x nor b", "Pass the logits");
  EXPECT_HL_ERROR(DeltaGates({.x = x, .bias = bias, .a_log = bias.narrow(0, 0, 3), .b = {}}, {}),
                  ExitCode::kInternal,
                  "DeltaGates got x [6, 10] fp32 on cpu with bias [10] fp32 on cpu and a_log [3]",
                  "where H divides D");
  EXPECT_HL_ERROR(DeltaGates({.x = x, .bias = bias, .a_log = bias, .b = x.narrow(0, 0, 5)}, {}),
                  ExitCode::kInternal, "with b [5, 10] fp32", "Use the same tokens");
  EXPECT_HL_ERROR(DeltaGates({.x = x, .bias = bias, .a_log = bias, .b = {}}, {.bound = 1}),
                  ExitCode::kInternal, "DeltaGates got the bound 1", "Use a number below 0");
  EXPECT_HL_ERROR(DeltaGates({.x = {}, .bias = {}, .a_log = {}, .b = x.to(at::kHalf)}, {}),
                  ExitCode::kUsage, "DeltaGates does not support fp16. Use fp32, bf16 or fp64.");
}

}  // namespace
}  // namespace halflife::ops
