#include "kernels/rms_norm/rms_norm.h"

#include <cmath>

#include "kernels/gradient_check.h"

namespace halflife::kernels {
namespace {

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

TEST(RmsNormTest, GatedIsNormTimesSilu) {
  const at::Tensor x = Normal({2, 3, 7}, 1), gate = Normal({2, 3, 7}, 2), weight = Uniform({7}, 3);
  const at::Tensor want = RmsNorm(x, weight, 1e-6) * gate / (1 + (-gate).exp());
  EXPECT_TRUE(test::Close(GatedRmsNorm(x, gate, weight, 1e-6), want, 1e-14));
}

// fp32 over 300 elements: 6e-8, some ten roundings deep; dweight sums 150 rows. The norm's eps bounds how much the two
// terms of dx cancel (with one element a row they nearly do).
TEST(RmsNormTest, FusedLoopsMatchFp64) {
  for (const int64_t dim : {1, 16, 300}) {
    SCOPED_TRACE(dim);
    const at::Tensor x = Normal({150, dim}, 1), gate = Normal({150, dim}, 2) * 3;
    const at::Tensor weight = Uniform({dim}, 3);
    test::ExpectFloatMatchesDouble([](const auto& in) { return RmsNorm(in[0], in[1], 1e-2); },
                                   {x, weight}, 3e-6);
    test::ExpectFloatMatchesDouble(
        [](const auto& in) { return GatedRmsNorm(in[0], in[1], in[2], 1e-2); }, {x, gate, weight},
        3e-6);
  }
}

TEST(RmsNormTest, GradientsAreFiniteDifferences) {
  const at::Tensor weights = Normal({4, 6}, 9);
  test::ExpectFiniteDifferences(
      [&](const auto& in) { return (GatedRmsNorm(in[0], in[1], in[2], 1e-3) * weights).sum(); },
      {Normal({4, 6}, 1), Normal({4, 6}, 2), Normal({6}, 3)});
}

TEST(RmsNormTest, Bf16IsRoundedOnce) {
  const at::Tensor x = Normal({8, 64}, 1, at::kBFloat16), weight = Normal({64}, 2, at::kFloat);
  const at::Tensor y = RmsNorm(x, weight, 1e-6);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(test::Close(y, RmsNorm(x.to(at::kDouble), weight.to(at::kDouble), 1e-6), 1.0 / 256));
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

}  // namespace
}  // namespace halflife::kernels
