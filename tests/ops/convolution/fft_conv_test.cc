// FFT convolutions equal the direct sum, with windows and skips.
#include "ops/convolution/fft_conv.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Close;
using test::Normal;

constexpr int64_t kBatch = 2, kDim = 3;
// Decreases to a seventh over 100 tokens in the first channel.
constexpr FilterWindow kWindow = {.first = -0.02, .step = -0.001};

at::Tensor Direct(const at::Tensor& x, const at::Tensor& filter) {
  at::Tensor y = at::zeros(x.sizes(), x.options());
  for (int64_t t = 0; t < x.size(1); ++t)
    for (int64_t s = 0; s <= t; ++s) y.select(1, t) += filter[t - s] * x.select(1, s);
  return y;
}

at::Tensor Plain(const std::vector<at::Tensor>& in) {
  return FftConv({.x = in[0], .filter = in[1]});
}
at::Tensor Skipped(const std::vector<at::Tensor>& in) {
  return FftConv({.x = in[0], .filter = in[1], .window = kWindow, .skip = in[2]});
}
// Lengths below, at and above powers of two and four.
TEST(FftConvTest, IsTheDirectSum) {
  for (const int64_t seq_len : {1, 2, 3, 16, 17, 100}) {
    const at::Tensor x = Normal({kBatch, seq_len, kDim}, 1), filter = Normal({seq_len, kDim}, 2);
    EXPECT_TRUE(Close(Plain({x, filter}), Direct(x, filter), 1e-13)) << seq_len;
  }
}

TEST(FftConvTest, WindowAndSkipAreWhatTheySay) {
  const at::Tensor x = Normal({kBatch, 20, kDim}, 1), filter = Normal({20, kDim}, 2),
                   skip = Normal({kDim}, 3);
  const at::Tensor windowed = Windowed(filter, kWindow);
  EXPECT_NEAR((windowed[10][2] / filter[10][2]).item<double>(), std::exp(10 * (-0.02 - 2 * 0.001)),
              1e-15);
  EXPECT_TRUE(Close(Skipped({x, filter, skip}), Direct(x, windowed) + x * skip, 1e-13));
}

// A sum of 260 terms has about 30 roundings of 2^-24 in two transforms of 512 points.
TEST(FftConvTest, NarrowTypesMatchFp64) {
  for (const int64_t seq_len : {1, 3, 100, 260}) {
    SCOPED_TRACE(seq_len);
    const at::Tensor x = Normal({kBatch, seq_len, kDim}, 1), filter = Normal({seq_len, kDim}, 2),
                     skip = Normal({kDim}, 3);
    test::ExpectFloatMatchesDouble(Plain, {x, filter}, 2e-6);
    test::ExpectFloatMatchesDouble(Skipped, {x, filter, skip}, 2e-6);
    test::ExpectBf16MatchesDouble(Skipped, {x, filter.to(at::kFloat), skip.to(at::kFloat)});
  }
}

// Without the gradients of the filter and the skip, that of x has the same bits.
TEST(FftConvTest, GradientOfOnlyTheInput) {
  const at::Tensor x = Normal({kBatch, 9, 5}, 1, at::kFloat).requires_grad_(),
                   filter = Normal({9, 5}, 2, at::kFloat), skip = Normal({5}, 3, at::kFloat),
                   dy = Normal({kBatch, 9, 5}, 4, at::kFloat);
  const auto dx = [&](const at::Tensor& by, const at::Tensor& plus) {
    return torch::autograd::grad({Skipped({x, by, plus})}, {x}, {dy})[0];
  };
  EXPECT_TRUE(test::BitEqual(dx(filter, skip),
                             dx(filter.clone().requires_grad_(), skip.clone().requires_grad_())));
}

// The bits of a row's outputs and gradients do not depend on the other rows of the batch.
TEST(FftConvTest, BitsOfARowAreItsOwn) {
  const at::Tensor x = Normal({3, 50, 20}, 1, at::kFloat), dy = Normal({3, 50, 20}, 3, at::kFloat);
  const at::Tensor filter = Normal({50, 20}, 2, at::kFloat);
  const auto run = [&](int64_t first, int64_t count) {
    const at::Tensor rows = x.narrow(0, first, count).clone().requires_grad_();
    const at::Tensor y = Plain({rows, filter});
    const auto grads = torch::autograd::grad({y}, {rows}, {dy.narrow(0, first, count)});
    return at::cat({y.detach(), grads[0]}, 2);
  };
  EXPECT_TRUE(run(0, 3).narrow(0, 1, 1).equal(run(1, 1)));
}

TEST(FftConvTest, LaterTokensOnlyChangeRounding) {
  const at::Tensor x = Normal({kBatch, 100, kDim}, 1, at::kFloat),
                   filter = Normal({100, kDim}, 2, at::kFloat);
  const at::Tensor before = Plain({x, filter});
  at::Tensor changed = x.clone();
  changed.select(1, 60).mul_(-2);
  const at::Tensor after = Plain({changed, filter});
  EXPECT_TRUE(Close(after.narrow(1, 0, 60), before.narrow(1, 0, 60), 2e-6));
  EXPECT_FALSE(Close(after.select(1, 60), before.select(1, 60), 0.01));
}

TEST(FftConvTest, GradientsAreFiniteDifferences) {
  test::ExpectFiniteDifferences(
      [](const std::vector<at::Tensor>& in) { return Skipped(in).square().sum(); },
      {Normal({kBatch, 7, kDim}, 1), Normal({7, kDim}, 2), Normal({kDim}, 3)});
}

TEST(FftConvTest, BitsDoNotDependOnTheNumberOfThreads) {
  test::ExpectSameBitsWithThreads([] {
    const at::Tensor x = Normal({kBatch, 300, 40}, 1, at::kFloat).requires_grad_();
    const at::Tensor filter = Normal({300, 40}, 2, at::kFloat).requires_grad_();
    const at::Tensor y = Plain({x, filter});
    return torch::autograd::grad({y}, {x, filter}, {Normal({kBatch, 300, 40}, 3, at::kFloat)});
  });
}

TEST(FftConvTest, BadInput) {
  const at::Tensor x = Normal({kBatch, 4, kDim}, 1, at::kFloat),
                   filter = Normal({4, kDim}, 2, at::kFloat);
  EXPECT_HL_ERROR(Plain({x, Normal({5, kDim}, 2, at::kFloat)}), ExitCode::kInternal,
                  "FftConv of x [2, 4, 3] fp32 on cpu with filter [5, 3]",
                  "Use x [B, T, D], filter [T, D] and skip [D] on one device, the last two fp32.");
  EXPECT_HL_ERROR(Skipped({x, filter, Normal({2}, 3, at::kFloat)}), ExitCode::kInternal,
                  "and skip [2] fp32 on cpu");
  EXPECT_HL_ERROR(Plain({x, Normal({4, kDim}, 2).to(at::kHalf)}), ExitCode::kUsage,
                  "FftConv does not support fp16");
}

}  // namespace
}  // namespace halflife::ops
