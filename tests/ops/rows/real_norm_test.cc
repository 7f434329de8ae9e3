// RealNorm standardises rows: zero mean and unit variance, with gradients.
#include "ops/rows/layer_norm.h"

#include <ATen/ops/full.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "ops/random_tensors.h"
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

TEST(RealNormTest, BadInput) {
  EXPECT_HL_ERROR(RealNorm(Normal({3, 1}, 1), 0), ExitCode::kInternal, "RealNorm got x [3, 1]",
                  "with at least 2 channels.");
  EXPECT_HL_ERROR(RealNorm(Normal({3, 4}, 1).to(at::kLong), 0), ExitCode::kUsage,
                  "RealNorm does not support int64");
}

}  // namespace
}  // namespace halflife::ops
