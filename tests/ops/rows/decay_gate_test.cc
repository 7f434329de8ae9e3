// The log decay of a gate, log(sigmoid(x)), equals its formula over the whole range of logits.
#include "ops/rows/decay_gate.h"

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

// 2^-24 of logarithms up to 20, with about five roundings. dbias sums 150 rows.
TEST(DecayGateTest, FusedLoopsMatchFp64) {
  for (const int64_t dim : {1, 16, 300}) {
    SCOPED_TRACE(dim);
    for (const double floor : {-std::numeric_limits<double>::infinity(), -0.1})
      test::ExpectFloatMatchesDouble(
          [&](const auto& in) {
            return DecayGate(in[0], in[1], {.scale = kScale, .floor = floor});
          },
          {Normal({150, dim}, 1) * 4, Normal({dim}, 2)}, 3e-6);
  }
}

TEST(DecayGateTest, GradientsAreFiniteDifferences) {
  const at::Tensor weights = Normal({4, 6}, 9);
  test::ExpectFiniteDifferences(
      [&](const auto& in) {
        return (DecayGate(in[0], in[1], {.scale = 2, .floor = -1.3}) * weights).sum();
      },
      {Normal({4, 6}, 1), Normal({6}, 2)});
}

// With bf16 inputs, the result and the bias's gradient are fp32, and dx is rounded once.
TEST(DecayGateTest, Bf16IsWidened) {
  for (const int64_t dim : {1, 31, 128}) {
    SCOPED_TRACE(dim);
    const at::Tensor x = (Normal({150, dim}, 1) * 4).to(at::kBFloat16),
                     bias = Normal({dim}, 2).to(at::kFloat), dy = Normal({150, dim}, 3);
    const auto run = [&](at::ScalarType dtype) {
      const at::Tensor in = x.to(dtype).requires_grad_();
      const at::Tensor b = (dtype == at::kDouble ? bias.to(dtype) : bias.clone()).requires_grad_();
      const at::Tensor y = DecayGate(in, b, {.scale = kScale});
      const auto grads = torch::autograd::grad({y}, {in, b}, {dy.to(y.scalar_type())});
      return std::vector<at::Tensor>{y, grads[0], grads[1]};
    };
    const auto narrow = run(at::kBFloat16), wide = run(at::kDouble);
    EXPECT_EQ(narrow[0].scalar_type(), at::kFloat);
    EXPECT_TRUE(test::Close(narrow[0], wide[0], 3e-6));
    EXPECT_EQ(narrow[1].scalar_type(), at::kBFloat16);
    EXPECT_TRUE(((narrow[1].to(at::kDouble) - wide[1]).abs() <= 0x1p-8 * wide[1].abs() + 3e-6)
                    .all()
                    .item<bool>());
    EXPECT_EQ(narrow[2].scalar_type(), at::kFloat);
    EXPECT_TRUE(test::Close(narrow[2], wide[2], 3e-6));
  }
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

TEST(DecayGateTest, StridedRowsNoRowsAndThreads) {
  const at::Tensor wide = Normal({60, 40}, 1, at::kFloat), bias = Normal({20}, 2, at::kFloat);
  EXPECT_TRUE(test::BitEqual(DecayGate(wide.narrow(1, 10, 20), bias, {}),
                             DecayGate(wide.narrow(1, 10, 20).contiguous(), bias, {})));
  const at::Tensor some_bias = bias.clone().requires_grad_();
  const at::Tensor none = DecayGate(wide.narrow(0, 0, 0).narrow(1, 0, 20), some_bias, {});
  EXPECT_EQ(none.numel(), 0);
  EXPECT_TRUE(torch::autograd::grad({none.sum()}, {some_bias})[0].eq(0).all().item<bool>());
  test::ExpectSameBitsWithThreads([] {
    const at::Tensor x = Normal({700, 48}, 1, at::kFloat).requires_grad_();
    const at::Tensor b = Normal({48}, 2, at::kFloat).requires_grad_();
    const at::Tensor y = DecayGate(x, b, {.scale = kScale});
    return torch::autograd::grad({y}, {x, b}, {Normal({700, 48}, 4, at::kFloat)});
  });
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
