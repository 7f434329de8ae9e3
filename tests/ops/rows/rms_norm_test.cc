// RMSNorm, with gates and with residual sums, equals its formula.
#include "ops/rows/rms_norm.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <utility>
#include <vector>

#include "ops/random_tensors.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using kernels::NormGate;
using test::Normal;
using test::Uniform;

TEST(RmsNormTest, IsTheFormula) {
  const at::Tensor x = Normal({3, 5}, 1), weight = Uniform({5}, 2) + 0.5;
  const at::Tensor y = RmsNorm(x, weight, 1e-2);
  for (int64_t row = 0; row < 3; ++row) {
    double sum = 0;
    for (int64_t i = 0; i < 5; ++i) sum += std::pow(x[row][i].item<double>(), 2);
    for (int64_t i = 0; i < 5; ++i) {
      const double want =
          x[row][i].item<double>() / std::sqrt(sum / 5 + 1e-2) * weight[i].item<double>();
      EXPECT_NEAR(y[row][i].item<double>(), want, 1e-14);
    }
  }
}

TEST(RmsNormTest, GatedIsNormTimesTheFunctionOfTheGate) {
  const at::Tensor x = Normal({2, 3, 7}, 1), gate = Normal({2, 3, 7}, 2), weight = Uniform({7}, 3);
  const at::Tensor sigmoid = 1 / (1 + (-gate).exp()), norm = RmsNorm(x, weight, 1e-6);
  EXPECT_TRUE(test::Close(GatedRmsNorm(x, gate, weight, 1e-6), norm * gate * sigmoid, 1e-14));
  EXPECT_TRUE(
      test::Close(GatedRmsNorm(x, gate, weight, 1e-6, NormGate::kSigmoid), norm * sigmoid, 1e-14));
}

// A gate that is part of the columns of a matrix, with adjacent heads, is read in place and gives
// the bits of a copy. For irregular strides the kernels receive such a copy.
TEST(RmsNormTest, GatesInColumnsOfAMatrix) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = Normal({2, 5, 3, 8}, 1, dtype), dout = Normal({2, 5, 3, 8}, 2, dtype),
                     weight = Uniform({8}, 3).to(at::kFloat);
    const at::Tensor all = Normal({2, 5, 40}, 4, dtype), turned = Normal({5, 2, 3, 8}, 5, dtype),
                     one = Normal({1, 1, 3, 8}, 6, dtype);
    for (const at::Tensor& gate : {all.narrow(-1, 10, 24).view({2, 5, 3, 8}),
                                   turned.transpose(0, 1), one.expand({2, 5, 3, 8})}) {
      ASSERT_FALSE(gate.is_contiguous());
      const auto results = [&](const at::Tensor& gate_in) {
        const at::Tensor leaf = gate_in.detach().requires_grad_(),
                         scale = weight.detach().requires_grad_();
        const at::Tensor out = GatedRmsNorm(x, leaf, scale, 1e-5);
        out.backward(dout);
        return std::vector<at::Tensor>{out, leaf.grad().contiguous(), scale.grad()};
      };
      test::ExpectBitEqual(results(gate), results(gate.contiguous()));
    }
  }
}

TEST(AddRmsNormTest, IsTheSumAndItsNorm) {
  const at::Tensor x = Normal({3, 5, 40}, 1), branch = Normal({3, 5, 40}, 2);
  const at::Tensor weight = Normal({40}, 3, at::kFloat);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(dtype);
    const at::Tensor a = x.to(dtype), b = branch.to(dtype);
    const auto [sum, normed] = AddRmsNorm(a, b, weight, 1e-6);
    EXPECT_TRUE(test::BitEqual(sum, a + b));
    EXPECT_TRUE(test::BitEqual(normed, RmsNorm(sum, weight, 1e-6)));
  }
}

// Gradients reach both summands through the sum, its norm, or both.
TEST(AddRmsNormTest, GradientsOfEitherOutput) {
  const at::Tensor weight = Normal({40}, 3);
  for (const auto& [use_sum, use_normed] : {std::pair(true, true), {true, false}, {false, true}}) {
    SCOPED_TRACE(use_sum);
    const auto gradients = [&, a = use_sum, b = use_normed](at::ScalarType dtype, bool fused) {
      const at::Tensor x = Normal({150, 40}, 1).to(dtype).requires_grad_(),
                       branch = Normal({150, 40}, 2).to(dtype).requires_grad_(),
                       w = weight.to(dtype).requires_grad_();
      const ResidualNorm y =
          fused ? AddRmsNorm(x, branch, w, 1e-2)
                : ResidualNorm{.sum = x + branch, .normed = RmsNorm(x + branch, w, 1e-2)};
      // For an unused output, the backward receives an undefined gradient.
      at::Tensor loss;
      if (a) loss = (y.sum * Normal({150, 40}, 4).to(dtype)).sum();
      if (b) {
        const at::Tensor part = (y.normed * Normal({150, 40}, 5).to(dtype)).sum();
        loss = a ? loss + part : part;
      }
      return torch::autograd::grad({loss}, {x, branch, w}, {}, std::nullopt, false,
                                   /*allow_unused=*/true);
    };
    const auto fused = gradients(at::kFloat, true), want = gradients(at::kDouble, false);
    for (size_t i = 0; i < want.size(); ++i) {
      if (i == 2 && !use_normed) continue;
      EXPECT_TRUE(test::Close(fused[i], want[i], 3e-6)) << "input " << i;
    }
  }
}

TEST(RmsNormTest, ZeroRowsAndNansStayVisible) {
  at::Tensor x = Normal({3, 20}, 1, at::kFloat);
  x[1].zero_();
  x[2][4] = std::nanf("");
  const at::Tensor y = RmsNorm(x, Uniform({20}, 2).to(at::kFloat), 1e-6);
  EXPECT_TRUE(y[0].isfinite().all().item<bool>());
  EXPECT_TRUE((y[1] == 0).all().item<bool>());
  EXPECT_TRUE(y[2].isnan().all().item<bool>());
}

TEST(RmsNormTest, BadInput) {
  const at::Tensor x = Normal({3, 20}, 1, at::kFloat), weight = Normal({20}, 2, at::kFloat);
  const ExitCode internal = ExitCode::kInternal, usage = ExitCode::kUsage;
  EXPECT_HL_ERROR(RmsNorm(x, weight.narrow(0, 0, 19), 1e-6), internal,
                  "RmsNorm got x [3, 20] fp32 on cpu with weight [19] fp32 on cpu",
                  "x [..., D] and weight [D] on one device.");
  EXPECT_HL_ERROR(RmsNorm(x, weight.view({1, 20}), 1e-6), internal, "weight [1, 20]");
  EXPECT_HL_ERROR(RmsNorm(x, weight.to(at::kMeta), 1e-6), internal, "weight [20] fp32 on meta");
  EXPECT_HL_ERROR(RmsNorm(x, {}, 1e-6), internal, "weight undefined");
  EXPECT_HL_ERROR(RmsNorm(x.narrow(1, 0, 0), weight.narrow(0, 0, 0), 1e-6), internal, "x [3, 0]");
  EXPECT_HL_ERROR(RmsNorm(x.to(at::kHalf), weight, 1e-6), usage,
                  "RmsNorm does not support fp16. Use fp32, bf16 or fp64.");
  EXPECT_HL_ERROR(RmsNorm(x, weight.to(at::kHalf), 1e-6), usage, "RmsNorm does not support fp16");
  EXPECT_HL_ERROR(RmsNorm(x.to(at::kLong), weight, 1e-6), usage, "RmsNorm does not support int64");

  EXPECT_HL_ERROR(GatedRmsNorm(x, x.narrow(0, 0, 2), weight, 1e-6), internal,
                  "GatedRmsNorm got x [3, 20] fp32 on cpu with gate [2, 20]",
                  "x and gate [..., V] of one dtype");
  EXPECT_HL_ERROR(GatedRmsNorm(x, x.to(at::kBFloat16), weight, 1e-6), internal,
                  "gate [3, 20] bf16");
  EXPECT_HL_ERROR(GatedRmsNorm(x, x.to(at::kMeta), weight, 1e-6), internal, "fp32 on meta");
  EXPECT_HL_ERROR(GatedRmsNorm(x, x, weight.narrow(0, 0, 19), 1e-6), internal, "weight [19]");
  EXPECT_HL_ERROR(GatedRmsNorm(x, x.to(at::kHalf), weight, 1e-6), usage,
                  "GatedRmsNorm does not support fp16");

  EXPECT_HL_ERROR(AddRmsNorm(x, x.narrow(1, 0, 19), weight, 1e-6), internal,
                  "AddRmsNorm got x [3, 20] fp32 on cpu with branch [3, 19]",
                  "x and branch [..., D] of one dtype");
  EXPECT_HL_ERROR(AddRmsNorm(x, x.to(at::kDouble), weight, 1e-6), internal, "branch [3, 20] fp64");
  EXPECT_HL_ERROR(AddRmsNorm(x, x.to(at::kMeta), weight, 1e-6), internal, "fp32 on meta");
  EXPECT_HL_ERROR(AddRmsNorm(x, x, weight.narrow(0, 0, 19), 1e-6), internal, "weight [19]");
  EXPECT_HL_ERROR(AddRmsNorm(x.to(at::kHalf), x.to(at::kHalf), weight, 1e-6), usage,
                  "AddRmsNorm does not support fp16");
}

}  // namespace
}  // namespace halflife::ops
