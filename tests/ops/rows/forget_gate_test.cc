// The forget gate equals its formula, keeps the accuracy of both outputs at their ends, and has the
// gradients of finite differences.
#include "ops/rows/decay_gates.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Close;
using test::Normal;
using test::Uniform;

TEST(ForgetGateTest, IsTheFormula) {
  const at::Tensor x = Normal({3, 5, 4}, 1) * 3, bound = Uniform({4}, 2);
  const auto [k, log_decay] = ForgetGate({.x = x, .bound = bound});
  const at::Tensor alpha = bound + (1 - bound) * at::sigmoid(x);
  EXPECT_TRUE(Close(k, 1 - alpha, 1e-15));
  EXPECT_TRUE(Close(log_decay, alpha.log(), 1e-14));
  const ForgetGateOutput open = ForgetGate({.x = x});
  EXPECT_TRUE(Close(open.k, 1 - at::sigmoid(x), 1e-15));
  EXPECT_TRUE(Close(open.log_decay, at::sigmoid(x).log(), 1e-14));
}

TEST(ForgetGateTest, GradientsAreFiniteDifferences) {
  const at::Tensor x = Normal({2, 3, 4}, 1) * 2, bound = Uniform({4}, 2) * 0.9;
  const at::Tensor dk = Normal({2, 3, 4}, 3), dlog = Normal({2, 3, 4}, 4);
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    const auto [k, log_decay] =
        ForgetGate({.x = in[0], .bound = in.size() > 1 ? in[1] : at::Tensor()});
    return (k * dk + log_decay * dlog).sum();
  };
  test::ExpectFiniteDifferences(loss, {x, bound});
  test::ExpectFiniteDifferences(loss, {x});
}

// Relative errors of a few fp32 roundings for logits up to 80, where 1 - alpha or alpha is 1e-35.
// A key of 1 - exp(log_decay) would be 0 beyond 17.
TEST(ForgetGateTest, BothEndsKeepTheirAccuracy) {
  const at::Tensor x = at::linspace(-80, 80, 641, at::kFloat).unsqueeze(1);
  for (const double b : {0.0, 1e-6, 0.3, 0.9}) {
    SCOPED_TRACE(b);
    const at::Tensor bound = b == 0 ? at::Tensor() : at::full({1}, b, at::kFloat);
    const at::Tensor wide_bound = b == 0 ? at::Tensor() : bound.to(at::kDouble);
    const ForgetGateOutput got = ForgetGate({.x = x, .bound = bound}),
                           want = ForgetGate({.x = x.to(at::kDouble), .bound = wide_bound});
    EXPECT_LT(((got.k - want.k) / want.k).abs().max().item<double>(), 1e-6);
    EXPECT_LT(((got.log_decay - want.log_decay) / want.log_decay).abs().max().item<double>(), 1e-6);
  }
}

// A bound that fp32 rounds to 0 next to a closed gate gives a finite decay and gradient.
TEST(ForgetGateTest, ExtremesAreFinite) {
  for (const at::Tensor& bound : {at::Tensor(), at::zeros({1}, at::kFloat)}) {
    const at::Tensor x = at::full({2, 1}, -1e4f).requires_grad_();
    const auto [k, log_decay] = ForgetGate({.x = x, .bound = bound});
    EXPECT_TRUE(log_decay.isfinite().all().item<bool>());
    EXPECT_EQ(k[0][0].item<float>(), 1);
    const at::Tensor dx = torch::autograd::grad({(k + log_decay).sum()}, {x})[0];
    EXPECT_TRUE(dx.isfinite().all().item<bool>());
  }
}

TEST(ForgetGateTest, Bf16KeepsAnFp32Decay) {
  const at::Tensor x = Normal({4, 3}, 1, at::kBFloat16);
  const auto [k, log_decay] = ForgetGate({.x = x, .bound = at::full({3}, 0.2f)});
  EXPECT_EQ(k.scalar_type(), at::kBFloat16);
  EXPECT_EQ(log_decay.scalar_type(), at::kFloat);
  const ForgetGateOutput wide = ForgetGate({.x = x.to(at::kFloat), .bound = at::full({3}, 0.2f)});
  EXPECT_TRUE(log_decay.equal(wide.log_decay));
}

TEST(ForgetGateTest, BadInput) {
  EXPECT_HL_ERROR(ForgetGate({.x = Normal({2, 3}, 1), .bound = Normal({2}, 2)}),
                  ExitCode::kInternal, "ForgetGate: bound [2] fp64 on cpu does not fit x [2, 3]",
                  "Use one value per channel");
}

}  // namespace
}  // namespace halflife::ops
