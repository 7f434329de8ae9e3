// Biases, activations and gains of several parts in one pass equal their formulas.
#include "ops/rows/bias_map.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "ops/random_tensors.h"
#include "ops/recording_sink.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using test::Normal;

constexpr ElementMap kElu = ElementMap::kEluPlusOne, kPlain = ElementMap::kIdentity,
                     kSilu = ElementMap::kSilu;

TEST(BiasMapTest, IsTheFormula) {
  const at::Tensor x = Normal({3, 5}, 1) * 3, bias = Normal({5}, 2), gain = Normal({5}, 3);
  const std::vector<at::Tensor> y = ops::BiasMap({{.x = x, .bias = bias, .map = kElu},
                                                  {.x = x, .bias = bias},
                                                  {.x = x, .bias = bias, .map = kSilu},
                                                  {.x = x, .bias = bias, .gain = gain}});
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t i = 0; i < 5; ++i) {
      const double z = x[row][i].item<double>() + bias[i].item<double>();
      EXPECT_NEAR(y[0][row][i].item<double>(), z > 0 ? z + 1 : std::exp(z), 1e-14);
      EXPECT_NEAR(y[1][row][i].item<double>(), z, 1e-15);
      EXPECT_NEAR(y[2][row][i].item<double>(), z / (1 + std::exp(-z)), 1e-14);
      const double gained = x[row][i].item<double>() * gain[i].item<double>();
      EXPECT_NEAR(y[3][row][i].item<double>(), gained + bias[i].item<double>(), 1e-14);
    }
  }
}

// A feature far below 1, which elu's own form would round away.
TEST(BiasMapTest, SmallFeaturesStay) {
  const at::Tensor x = at::tensor({-8.0f, -20.0f, -60.0f}), zero = at::zeros({3}, at::kFloat);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor y =
        ops::BiasMap({{.x = x.to(dtype), .bias = zero.to(dtype), .map = kElu}})[0].to(at::kDouble);
    const at::Tensor want = x.to(at::kDouble).exp();
    EXPECT_TRUE((y / want - 1).abs().max().item<double>() <= (dtype == at::kFloat ? 1e-6 : 4e-3));
  }
}

TEST(BiasMapTest, FarValuesAndNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor x = at::tensor({-infinity, infinity, std::nanf(""), 0.0f}).requires_grad_();
  const at::Tensor y = ops::BiasMap({{.x = x, .bias = {}, .map = kElu}})[0];
  const at::Tensor dx = torch::autograd::grad({y.sum()}, {x})[0];
  EXPECT_EQ(y[0].item<float>(), 0);
  EXPECT_EQ(y[1].item<float>(), infinity);
  EXPECT_TRUE(std::isnan(y[2].item<float>()));
  EXPECT_EQ(y[3].item<float>(), 1);
  EXPECT_EQ(dx[0].item<float>(), 0);
  EXPECT_EQ(dx[1].item<float>(), 1);
  EXPECT_TRUE(std::isnan(dx[2].item<float>()));
  EXPECT_EQ(dx[3].item<float>(), 1);
}

// Columns of one matrix give the bits of their copies, and their gradients are columns of one
// matrix.
TEST(BiasMapTest, ColumnsOfOneMatrix) {
  const at::Tensor all = Normal({2, 70, 24}, 1, at::kFloat).requires_grad_();
  const std::vector<int64_t> widths = {8, 6, 10};
  const auto run = [&](bool columns) {
    std::vector<at::Tensor> leaves, biases;
    std::vector<ops::BiasedInput> parts;
    const std::vector<at::Tensor> split = all.detach().split_with_sizes(widths, -1);
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor x = columns ? split[i] : split[i].contiguous();
      leaves.push_back(x.detach().requires_grad_());
      biases.push_back(Normal({widths[i]}, 2 + i, at::kFloat).requires_grad_());
      parts.push_back({.x = leaves[i], .bias = biases[i], .map = i < 2 ? kElu : kPlain});
    }
    const std::vector<at::Tensor> y = ops::BiasMap(parts);
    leaves.insert(leaves.end(), biases.begin(), biases.end());
    std::vector<at::Tensor> douts;
    for (size_t i = 0; i < 3; ++i) douts.push_back(Normal({2, 70, widths[i]}, 7 + i, at::kFloat));
    std::vector<at::Tensor> results = torch::autograd::grad(y, leaves, douts);
    if (columns) {
      for (size_t i = 1; i < 3; ++i)
        EXPECT_TRUE(results[i].storage().is_alias_of(results[0].storage()));
      EXPECT_EQ(results[1].storage_offset() - results[0].storage_offset(), 8);
      EXPECT_EQ(results[2].stride(1), 24);
    }
    results.insert(results.end(), y.begin(), y.end());
    return results;
  };
  test::ExpectBitEqual(run(true), run(false));
}

// Gradients are written to adjacent places of the caller. One of them is for a part with only a
// bias.
TEST(BiasMapTest, GradientsGoWhereTheCallerSays) {
  const auto columns = std::make_shared<ops::SharedMatrix>(std::vector<int64_t>{4, 6});
  const at::Tensor a = Normal({9, 4}, 1, at::kFloat).requires_grad_(),
                   b = Normal({9, 6}, 2, at::kFloat).requires_grad_(),
                   bias = Normal({4}, 3, at::kFloat);
  const auto run = [&](bool given) {
    const auto place = [&](size_t part) {
      return given ? ops::ColumnSlice{.columns = columns, .part = part} : ops::ColumnSlice{};
    };
    const std::vector<at::Tensor> y =
        ops::BiasMap({{.x = a, .bias = bias, .gradient = place(0)},
                      {.x = b, .bias = {}, .map = kSilu, .gradient = place(1)}});
    return torch::autograd::grad(y, {a, b},
                                 {Normal({9, 4}, 4, at::kFloat), Normal({9, 6}, 5, at::kFloat)});
  };
  const auto got = run(true), want = run(false);
  test::ExpectBitEqual(got, want);
  EXPECT_TRUE(got[1].storage().is_alias_of(got[0].storage()));
  EXPECT_EQ(got[1].storage_offset() - got[0].storage_offset(), 4);
}

// A part without any operation is passed through. The gradient of a part with only a bias is that
// of the output.
TEST(BiasMapTest, WhatIsNotWritten) {
  const at::Tensor x = Normal({6, 4}, 1, at::kFloat).requires_grad_(),
                   bias = Normal({4}, 2, at::kFloat).requires_grad_();
  EXPECT_TRUE(ops::BiasMap({{.x = x, .bias = {}}})[0].is_same(x));
  const at::Tensor y = ops::BiasMap({{.x = x, .bias = bias}})[0],
                   dy = Normal({6, 4}, 3, at::kFloat);
  const auto grads = torch::autograd::grad({y}, {x, bias}, {dy});
  EXPECT_TRUE(test::BitEqual(grads[0], dy));
  EXPECT_TRUE(test::Close(grads[1], dy.sum(0), 1e-6));
}

TEST(BiasMapTest, ASinkGetsTheBiasGradient) {
  for (const bool added : {false, true}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = Normal({200, 12}, 1, dtype).requires_grad_(),
                       bias = Normal({12}, 2, dtype).requires_grad_(),
                       dy = Normal({200, 12}, 3, dtype);
      test::RecordingSink::Log log(bias, /*before=*/0.5);
      log.added = added;
      log.Attach(bias);
      const at::Tensor y = ops::BiasMap({{.x = x, .bias = bias, .map = kElu}})[0];
      (y * dy).sum().backward();
      EXPECT_EQ(log.written, 1);
      EXPECT_FALSE(bias.grad().defined());
      const at::Tensor slope = y.detach().to(at::kDouble).clamp_max(1);
      const at::Tensor want = (slope * dy.to(at::kDouble)).sum(0) + (added ? 0.5 : 0.0);
      EXPECT_TRUE(test::Close(log.sum, want, 1e-5));
    }
  }
}

TEST(BiasMapTest, RowsOfAnyLayoutAndNoRows) {
  const at::Tensor wide = Normal({20, 60}, 1, at::kFloat), bias = Normal({20}, 2, at::kFloat);
  const auto map = [&](const at::Tensor& x) {
    return ops::BiasMap({{.x = x, .bias = bias, .map = kElu}})[0];
  };
  EXPECT_TRUE(test::BitEqual(map(wide.t()), map(wide.t().contiguous())));
  EXPECT_EQ(map(wide.narrow(0, 0, 0).narrow(1, 0, 20)).numel(), 0);
}

// Also gradients of biases and gains.
TEST(BiasMapTest, GradientsOfStridedParameters) {
  const at::Tensor x = Normal({6, 20}, 1, at::kFloat), dout = Normal({6, 20}, 2, at::kFloat),
                   columns = Normal({20, 2}, 3, at::kFloat);
  for (const bool gain : {false, true}) {
    const auto gradients = [&](const at::Tensor& parameter) {
      const at::Tensor in = x.detach().requires_grad_(), of = parameter.detach().requires_grad_();
      const at::Tensor y = gain ? ops::BiasMap({{.x = in, .bias = {}, .gain = of}})[0]
                                : ops::BiasMap({{.x = in, .bias = of, .map = kSilu}})[0];
      return torch::autograd::grad({y}, {in, of}, {dout});
    };
    test::ExpectBitEqual(gradients(columns.select(1, 0)),
                         gradients(columns.select(1, 0).contiguous()));
  }
}

// More parts than one pass supports, and one with a different number of rows.
TEST(BiasMapTest, PartsBeyondAPass) {
  std::vector<ops::BiasedInput> parts;
  for (uint64_t i = 0; i < 6; ++i)
    parts.push_back({.x = Normal({i == 1 ? 3 : 7, 5}, i, at::kFloat),
                     .bias = Normal({5}, 10 + i, at::kFloat),
                     .map = kElu});
  const std::vector<at::Tensor> together = ops::BiasMap(parts);
  for (size_t i = 0; i < parts.size(); ++i)
    EXPECT_TRUE(test::Close(together[i], ops::BiasMap({parts[i]})[0], 1e-6)) << i;
  for (ops::BiasedInput& part : parts)  // Each part now has two of a pass.
    part.map = kPlain, part.gain = Normal({5}, 20, at::kFloat);
  const std::vector<at::Tensor> gained = ops::BiasMap(parts);
  for (size_t i = 0; i < parts.size(); ++i)
    EXPECT_TRUE(test::Close(gained[i], parts[i].x * parts[i].gain + parts[i].bias, 1e-6)) << i;
}

TEST(BiasMapTest, BadInput) {
  const at::Tensor x = Normal({6, 10}, 1, at::kFloat);
  EXPECT_HL_ERROR(ops::BiasMap({{.x = x.to(at::kHalf), .bias = {}, .map = kElu}}), ExitCode::kUsage,
                  "BiasMap does not support fp16. Use fp32, bf16 or fp64.");
  EXPECT_HL_ERROR(ops::BiasMap({{.x = {}, .bias = x}}), ExitCode::kInternal,
                  "BiasMap: part 0 has no x");
  EXPECT_HL_ERROR(ops::BiasMap({{.x = x, .bias = {}, .map = kSilu, .gain = x[0]}}),
                  ExitCode::kInternal, "BiasMap: part 0 has a gain and a map. Use one of them.");
}

}  // namespace
}  // namespace halflife::kernels
