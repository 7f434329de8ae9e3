// The sine network of long filters equals its formula, including gradients and narrow types.
#include "ops/convolution/sine_filter.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/convolution/sine_filter_args.h"
#include "ops/gradient_check.h"
#include "ops/sink_check.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using test::Close;
using test::Normal;

constexpr int64_t kInputs = 3, kChannels = 11;

// Returns x, the frequency, the output weight, then weight and bias of each layer.
std::vector<at::Tensor> Inputs(int64_t num_rows, int64_t width, int num_layers,
                               at::ScalarType dtype = at::kDouble) {
  std::vector<at::Tensor> in = {Normal({1, num_rows, kInputs}, 1, dtype),
                                Normal({width}, 2, dtype) + 2,
                                Normal({kChannels, width}, 3, dtype) / std::sqrt(width)};
  for (int i = 0; i < num_layers; ++i) {
    const int64_t inputs = i == 0 ? kInputs : width;
    in.push_back(Normal({width, inputs}, 10 + i, dtype) / std::sqrt(inputs));
    in.push_back(Normal({width}, 20 + i, dtype));
  }
  return in;
}

at::Tensor Filter(const std::vector<at::Tensor>& in, int64_t num_tokens) {
  ops::SineFilterInputs inputs = {.x = in[0],
                                  .num_tokens = num_tokens,
                                  .weights = {},
                                  .biases = {},
                                  .frequency = in[1],
                                  .output = in[2]};
  for (size_t i = 3; i < in.size(); i += 2)
    inputs.weights.push_back(in[i]), inputs.biases.push_back(in[i + 1]);
  return ops::SineFilter(inputs);
}

TEST(SinCosTest, IsLibmsToTwoUlp) {
  std::mt19937_64 engine(1);
  const auto expect_close = [](float got, double want) {
    const double ulp = std::abs(want) * 0x1p-23 + 0x1p-25;
    EXPECT_LE(std::abs(got - want), 2 * ulp);
  };
  for (const double range : {1e-3, 1.0, 3.2, 100.0, 1e5, 9e6}) {
    std::uniform_real_distribution<double> uniform(-range, range);
    for (int i = 0; i < 20000; ++i) {
      const auto x = static_cast<float>(uniform(engine));
      const SinCos got = SinCosOf(x);
      expect_close(got.sin, std::sin(static_cast<double>(x)));
      expect_close(got.cos, std::cos(static_cast<double>(x)));
      ASSERT_FALSE(testing::Test::HasFailure()) << x;
    }
  }
  EXPECT_EQ(SinCosOf(0.0f).sin, 0.0f);
  EXPECT_EQ(SinCosOf(0.0f).cos, 1.0f);
  EXPECT_EQ(SinCosOf(2e7f).sin, 0.0f);
  for (const float x : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    EXPECT_TRUE(std::isnan(SinCosOf(x).sin));
    EXPECT_TRUE(std::isnan(SinCosOf(x).cos));
  }
}

TEST(SineFilterTest, IsTheFormula) {
  const std::vector<at::Tensor> in = Inputs(7, 5, 2);
  at::Tensor a = in[0][0].narrow(0, 0, 4);
  for (const size_t layer : {3, 5}) a = at::sin(in[1] * (a.matmul(in[layer].t()) + in[layer + 1]));
  EXPECT_TRUE(Close(Filter(in, 4), a.matmul(in[2].t()), 1e-14));
}

TEST(SineFilterTest, GradientsAreFiniteDifferences) {
  test::ExpectFiniteDifferences([](const auto& in) { return Filter(in, 4).square().sum(); },
                                Inputs(7, 5, 3));
}

// The fused loops over blocks of 16 tokens. Each of up to four layers multiplies the error of a
// sum, about 2^-22, by a frequency of about 2. That gives 2^-18, plus a few roundings of the
// gradients' sums.
TEST(SineFilterTest, NarrowTypesMatchFp64) {
  for (const int num_layers : {1, 3, 4})
    for (const int64_t width : {1, 8, 70})
      for (const int64_t num_tokens : {1, 16, 45}) {
        SCOPED_TRACE(testing::Message()
                     << num_layers << " layers of " << width << ", " << num_tokens << " tokens");
        test::ExpectFloatMatchesDouble([&](const auto& in) { return Filter(in, num_tokens); },
                                       Inputs(num_tokens + 20, width, num_layers), 4e-5);
      }
}

// More layers than the kernel supports.
TEST(SineFilterTest, FiveLayersAreLibTorchsCalls) {
  test::ExpectFloatMatchesDouble([](const auto& in) { return Filter(in, 5); }, Inputs(9, 6, 5),
                                 2e-4);
}

TEST(SineFilterTest, GradientsGoToTheirOwnersSinks) {
  for (const bool added : {false, true}) {
    std::vector<at::Tensor> in = Inputs(40, 6, 3, at::kFloat);
    for (at::Tensor& x : in) x.requires_grad_();
    test::ExpectGradientsInSinks(Filter(in, 18), Normal({18, kChannels}, 5, at::kFloat), in, added);
  }
}

// Checks the kernel's sums. BLAS may use a different order per number of threads. It computes
// dout^T a_L, which is excluded, and dout W_out, which is exact with one channel per token.
TEST(SineFilterTest, BitsDoNotDependOnTheNumberOfThreads) {
  at::Tensor dout = at::zeros({290, kChannels});
  dout.scatter_(1, (at::arange(290) % kChannels).unsqueeze(1), Normal({290, 1}, 5, at::kFloat));
  test::ExpectSameBitsWithThreads([&] {
    const std::vector<at::Tensor> in = Inputs(300, 20, 3, at::kFloat);
    std::vector<at::Tensor> leaves = in;
    leaves.erase(leaves.begin() + 2);  // The output weight.
    for (at::Tensor& x : leaves) x.requires_grad_();
    const at::Tensor out = Filter(in, 290);
    std::vector<at::Tensor> results = torch::autograd::grad({out}, leaves, {dout});
    results.push_back(out.detach());
    return results;
  });
}

TEST(SineFilterTest, BadInput) {
  std::vector<at::Tensor> in = Inputs(9, 6, 2, at::kFloat);
  EXPECT_HL_ERROR(Filter(in, 10), ExitCode::kInternal,
                  "SineFilter of 10 tokens of x [1, 9, 3] fp32", "Use 1 to 9.");
  std::vector<at::Tensor> wide = in;
  wide[5] = Normal({6, 7}, 1, at::kFloat);
  EXPECT_HL_ERROR(Filter(wide, 9), ExitCode::kInternal, "layer 1: weight [6, 7] fp32",
                  "[6, 6] and [6] with the dtype and device of x.");
  std::vector<at::Tensor> narrow = in;
  narrow[2] = Normal({kChannels, 5}, 1, at::kFloat);
  EXPECT_HL_ERROR(Filter(narrow, 9), ExitCode::kInternal, "output [11, 5] fp32",
                  "[D, 6] with the dtype and device of x.");
  in[1] = in[1].to(at::kDouble);
  EXPECT_HL_ERROR(Filter(in, 9), ExitCode::kInternal, "with frequency [6] fp64", "both fp32");
  EXPECT_HL_ERROR(Filter({in[0].to(at::kHalf), in[1], in[2]}, 9), ExitCode::kUsage,
                  "SineFilter does not support fp16");
}

}  // namespace
}  // namespace halflife::kernels
