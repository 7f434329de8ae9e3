// RealNorm standardises rows: zero mean and unit variance, with gradients.
#include "ops/rows/real_norm.h"

#include <ATen/ops/full.h>

#include <cmath>

#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Normal;

// Standardises one row of n channels by definition.
std::vector<double> Standardised(const at::Tensor& row, double eps) {
  const int64_t n = row.numel();
  double mean = 0, squares = 0;
  std::vector<double> y(n);
  for (int64_t i = 0; i < n; ++i) mean += row[i].item<double>() / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    y[i] = row[i].item<double>() - mean;
    squares += y[i] * y[i];
  }
  for (double& v : y) v /= std::sqrt(squares / static_cast<double>(n - 1)) + eps;
  return y;
}

TEST(RealNormTest, IsStandardisation) {
  const at::Tensor x = Normal({5, 7}, 1);
  for (const double eps : {0.0, 0.1}) {
    const at::Tensor y = RealNorm(x, eps);
    for (int64_t row = 0; row < 5; ++row) {
      const std::vector<double> want = Standardised(x[row], eps);
      for (int64_t i = 0; i < 7; ++i) EXPECT_NEAR(y[row][i].item<double>(), want[i], 1e-14);
    }
  }
  EXPECT_NEAR(RealNorm(x, 0)[0].square().sum().item<double>(), 6, 1e-12);
}

// fp32 over 300 channels: 6e-8, with about ten roundings. For a row of two channels, the terms of
// dx cancel except for eps, which bounds the amplification of the error.
TEST(RealNormTest, FusedLoopsMatchFp64) {
  for (const int64_t dim : {2, 3, 16, 300}) {
    SCOPED_TRACE(dim);
    test::ExpectFloatMatchesDouble([](const auto& in) { return RealNorm(in[0], 0.5); },
                                   {Normal({150, dim}, 1)}, 3e-6);
  }
  test::ExpectFloatMatchesDouble([](const auto& in) { return RealNorm(in[0], 0); },
                                 {Normal({4, 40, 2, 32}, 2)}, 3e-6);
}

TEST(RealNormTest, GradientsAreFiniteDifferences) {
  const at::Tensor weights = Normal({4, 6}, 9);
  for (const double eps : {0.0, 0.1})
    test::ExpectFiniteDifferences(
        [&](const auto& in) { return (RealNorm(in[0], eps) * weights).sum(); },
        {Normal({4, 6}, 1)});
}

// With bf16 inputs the result is fp32, and the gradient is rounded once.
TEST(RealNormTest, Bf16IsWidened) {
  const at::Tensor x = Normal({150, 48}, 1).to(at::kBFloat16), dy = Normal({150, 48}, 2);
  const auto run = [&](at::ScalarType dtype) {
    const at::Tensor in = x.to(dtype).requires_grad_();
    const at::Tensor y = RealNorm(in, 1e-5);
    return std::pair(y, torch::autograd::grad({y}, {in}, {dy.to(y.scalar_type())})[0]);
  };
  const auto [y, dx] = run(at::kBFloat16);
  const auto [want_y, want_dx] = run(at::kDouble);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_TRUE(test::Close(y, want_y, 3e-6));
  EXPECT_EQ(dx.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(
      ((dx.to(at::kDouble) - want_dx).abs() <= 0x1p-8 * want_dx.abs() + 3e-6).all().item<bool>());
}

TEST(RealNormTest, RowsThatDoNotVaryAreZero) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
    for (const double eps : {0.0, 1e-5}) {
      const at::Tensor x = at::full({2, 4}, 3.0, dtype).requires_grad_();
      const at::Tensor y = RealNorm(x, eps);
      EXPECT_TRUE((y == 0).all().item<bool>());
      const at::Tensor dx = torch::autograd::grad({y[0][0]}, {x})[0];
      EXPECT_NEAR(dx[0][0].item<double>(), eps > 0 ? 0.75 / eps : 0, 1e-2);
      EXPECT_TRUE((dx[1] == 0).all().item<bool>());
    }
}

TEST(RealNormTest, StridedRowsAndNaN) {
  const at::Tensor wide = Normal({6, 40}, 1, at::kFloat);
  wide[2][13] = std::nanf("");
  const at::Tensor y = RealNorm(wide.narrow(1, 10, 20), 1e-5);
  EXPECT_TRUE(test::BitEqual(y[1], RealNorm(wide.narrow(1, 10, 20).contiguous(), 1e-5)[1]));
  EXPECT_TRUE(y[2].isnan().all().item<bool>());
  EXPECT_EQ(y.isnan().sum().item<int64_t>(), 20);
}

TEST(RealNormTest, BitsDoNotDependOnTheNumberOfThreads) {
  test::ExpectSameBitsWithThreads([&] {
    const at::Tensor x = Normal({700, 48}, 1, at::kFloat).requires_grad_();
    const at::Tensor y = RealNorm(x, 1e-5);
    return torch::autograd::grad({y}, {x}, {Normal({700, 48}, 4, at::kFloat)});
  });
}

TEST(RealNormTest, BadInput) {
  EXPECT_HL_ERROR(RealNorm(Normal({3, 1}, 1), 0), ExitCode::kInternal, "RealNorm got x [3, 1]",
                  "with at least 2 channels.");
  EXPECT_HL_ERROR(RealNorm(Normal({3, 4}, 1).to(at::kLong), 0), ExitCode::kUsage,
                  "RealNorm does not support int64");
}

}  // namespace
}  // namespace halflife::ops
