#include "kernels/fft_conv/fft_conv.h"

#include <ATen/ops/zeros.h>

#include <vector>

#include "kernels/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using test::Close;
using test::Normal;

constexpr int64_t kBatch = 2, kDim = 3;

at::Tensor Direct(const at::Tensor& x, const at::Tensor& filter) {
  at::Tensor y = at::zeros(x.sizes(), x.options());
  for (int64_t t = 0; t < x.size(1); ++t)
    for (int64_t s = 0; s <= t; ++s) y.select(1, t) += filter[t - s] * x.select(1, s);
  return y;
}

// Lengths below, at and above powers of two.
TEST(FftConvTest, IsTheDirectSum) {
  for (const int64_t seq_len : {1, 2, 3, 16, 17, 100}) {
    const at::Tensor x = Normal({kBatch, seq_len, kDim}, 1), filter = Normal({seq_len, kDim}, 2);
    EXPECT_TRUE(Close(FftConv({.x = x, .filter = filter}), Direct(x, filter), 1e-13)) << seq_len;
  }
}

// Sums of 100 terms and transforms of 256: some 10 roundings of 2^-24 on the way.
TEST(FftConvTest, NarrowTypesMatchFp64) {
  const auto function = [](const auto& in) { return FftConv({.x = in[0], .filter = in[1]}); };
  const at::Tensor x = Normal({kBatch, 100, kDim}, 1), filter = Normal({100, kDim}, 2);
  test::ExpectFloatMatchesDouble(function, {x, filter}, 2e-6);
  test::ExpectBf16MatchesDouble(function, {x, filter.to(at::kFloat)});
}

TEST(FftConvTest, LaterTokensMoveRoundingAlone) {
  const at::Tensor x = Normal({kBatch, 100, kDim}, 1, at::kFloat),
                   filter = Normal({100, kDim}, 2, at::kFloat);
  const at::Tensor before = FftConv({.x = x, .filter = filter});
  at::Tensor changed = x.clone();
  changed.select(1, 60).mul_(-2);
  const at::Tensor after = FftConv({.x = changed, .filter = filter});
  EXPECT_TRUE(Close(after.narrow(1, 0, 60), before.narrow(1, 0, 60), 2e-6));
  EXPECT_FALSE(Close(after.select(1, 60), before.select(1, 60), 0.01));
}

TEST(FftConvTest, GradientsAreFiniteDifferences) {
  test::ExpectFiniteDifferences(
      [](const auto& in) { return FftConv({.x = in[0], .filter = in[1]}).square().sum(); },
      {Normal({kBatch, 7, kDim}, 1), Normal({7, kDim}, 2)});
}

TEST(FftConvTest, BitsDoNotDependOnTheNumberOfThreads) {
  test::ExpectSameBitsWithThreads([] {
    const at::Tensor x = Normal({kBatch, 300, 40}, 1, at::kFloat).requires_grad_();
    const at::Tensor filter = Normal({300, 40}, 2, at::kFloat).requires_grad_();
    const at::Tensor y = FftConv({.x = x, .filter = filter});
    return torch::autograd::grad({y}, {x, filter}, {Normal({kBatch, 300, 40}, 3, at::kFloat)});
  });
}

TEST(FftConvTest, BadInput) {
  const at::Tensor x = Normal({kBatch, 4, kDim}, 1, at::kFloat);
  EXPECT_HL_ERROR(FftConv({.x = x, .filter = Normal({5, kDim}, 2, at::kFloat)}),
                  ExitCode::kInternal, "FftConv of x [2, 4, 3] fp32 on cpu with filter [5, 3]",
                  "filter [T, D] on one device would work");
  EXPECT_HL_ERROR(FftConv({.x = x, .filter = Normal({4, kDim}, 2).to(at::kHalf)}), ExitCode::kUsage,
                  "FftConv of fp16");
}

}  // namespace
}  // namespace halflife::kernels
