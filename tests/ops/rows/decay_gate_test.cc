// The log decay of a gate, log(sigmoid(x)), equals its formula over the whole range of logits.
#include "ops/rows/decay_gates.h"

#include <ATen/ops/arange.h>
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

constexpr double kScale = 1.0 / 16;

// A decay near 1 keeps all digits of its logarithm: an exponential and a logarithm of 2 ulp each.
TEST(DecayGateTest, FewUlpsOverTheWholeRange) {
  const at::Tensor x = at::arange(-90, 85, 0.00373, at::kFloat), zero = at::zeros({1}, at::kFloat);
  const at::Tensor y = DecayGate(x.unsqueeze(1), zero, {});
  const auto *at = x.const_data_ptr<float>(), *got = y.const_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double z = at[i];
    const double want = std::min(z, 0.0) - std::log1p(std::exp(-std::abs(z)));
    ASSERT_NEAR(got[i] / want, 1.0, 5e-7) << "at " << z;
  }
}

TEST(DecayGateTest, IsTheFormula) {
  const at::Tensor x = Normal({3, 5}, 1) * 4, bias = Normal({5}, 2);
  const at::Tensor y = DecayGate(x, bias, {.scale = kScale, .floor = -0.1});
  bool floored = false;
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t i = 0; i < 5; ++i) {
      const double z = x[row][i].item<double>() + bias[i].item<double>();
      const double want = -kScale * std::log1p(std::exp(-z));
      floored |= want < -0.1;
      EXPECT_NEAR(y[row][i].item<double>(), std::max(want, -0.1), 1e-15);
    }
  }
  EXPECT_TRUE(floored);
}

// Very large logits fully open or close the gate without NaN. A NaN stays NaN, also with a lower
// bound.
TEST(DecayGateTest, FarLogitsAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::tensor({-200.0f, 200.0f, -infinity, infinity}).requires_grad_();
  const at::Tensor zero = at::tensor({0.0f, 0.0f, 0.0f, 0.0f});
  const at::Tensor y = DecayGate(x, zero, {.scale = kScale});
  EXPECT_TRUE(y.equal(at::tensor({-12.5f, 0.0f, -infinity, 0.0f})));
  const at::Tensor dx = torch::autograd::grad({y.sum()}, {x})[0];
  EXPECT_TRUE(dx.equal(at::tensor({0.0625f, 0.0f, 0.0625f, 0.0f})));
  const at::Tensor nan = at::tensor({std::nanf("")});
  for (const double floor : {-1.0, -std::numeric_limits<double>::infinity()})
    EXPECT_TRUE(DecayGate(nan, at::tensor({0.0f}), {.floor = floor}).isnan().item<bool>());
}

TEST(DecayGateTest, StridedRowsAndNoRows) {
  const at::Tensor wide = Normal({60, 40}, 1, at::kFloat), bias = Normal({20}, 2, at::kFloat);
  EXPECT_TRUE(test::BitEqual(DecayGate(wide.narrow(1, 10, 20), bias, {}),
                             DecayGate(wide.narrow(1, 10, 20).contiguous(), bias, {})));
  const at::Tensor some_bias = bias.clone().requires_grad_();
  const at::Tensor none = DecayGate(wide.narrow(0, 0, 0).narrow(1, 0, 20), some_bias, {});
  EXPECT_EQ(none.numel(), 0);
  EXPECT_TRUE(torch::autograd::grad({none.sum()}, {some_bias})[0].eq(0).all().item<bool>());
}

TEST(DecayGateTest, BadInput) {
  const at::Tensor x = Normal({6, 10}, 1, at::kFloat), bias = Normal({10}, 2, at::kFloat);
  EXPECT_HL_ERROR(DecayGate(x, bias.narrow(0, 0, 5), {}), ExitCode::kInternal,
                  "DecayGate got x [6, 10] fp32 on cpu with bias [5] fp32 on cpu",
                  "x [..., C] and bias [C] on one device.");
  EXPECT_HL_ERROR(DecayGate(x, bias.to(at::kMeta), {}), ExitCode::kInternal,
                  "bias [10] fp32 on meta");
  EXPECT_HL_ERROR(DecayGate(x.to(at::kHalf), bias, {}), ExitCode::kUsage,
                  "DecayGate does not support fp16. Use fp32, bf16 or fp64.");
}

}  // namespace
}  // namespace halflife::ops
