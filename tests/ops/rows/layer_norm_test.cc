// Layer norm of several parts in one pass equals its formula and LibTorch's.
#include "ops/rows/layer_norm.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "ops/gradient_check.h"
#include "ops/linear/linear.h"
#include "ops/rows/row_operations.h"
#include "ops/torch/side_by_side.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::LayerNormOperands;
using test::Normal;
using test::TwoLayerNorms;

constexpr double kEps = 1e-3;

TEST(LayerNormTest, IsTheFormula) {
  const int64_t width = 5;
  const std::vector<at::Tensor> in = test::To(at::kDouble, LayerNormOperands(3, width));
  const at::Tensor y = TwoLayerNorms(in);
  for (int64_t row = 0; row < 3; ++row) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < width; ++i) mean += in[0][row][i].item<double>() / width;
    for (int64_t i = 0; i < width; ++i)
      variance += std::pow(in[0][row][i].item<double>() - mean, 2) / width;
    for (int64_t i = 0; i < width; ++i) {
      const double n = (in[0][row][i].item<double>() - mean) / std::sqrt(variance + kEps);
      EXPECT_NEAR(y[row][i].item<double>(), n * in[2][i].item<double>() + in[3][i].item<double>(),
                  1e-14);
    }
  }
}

// LibTorch's layer norm on each part: outputs and all gradients, in fp64.
TEST(LayerNormTest, IsLibTorchs) {
  const auto composed = [](const std::vector<at::Tensor>& in) {
    const int64_t width = in[0].size(1);
    return at::cat({at::layer_norm(in[0], {width}, in[2], in[3], kEps),
                    at::layer_norm(in[1], {width}, in[4], {}, kEps)},
                   -1);
  };
  test::ExpectSameFunction(TwoLayerNorms, composed,
                           test::To(at::kDouble, LayerNormOperands(40, 12)), 1e-12);
}

// Columns of one product, and heads within them, give the bits of their copies, with gradients per
// column.
TEST(LayerNormTest, ColumnsAreReadAndWrittenInTheirPlace) {
  const JoinedProductsEverywhere joins;
  const auto run = [&](bool columns, bool heads) {
    const at::Tensor x = Normal({2, 30, 8}, 1, at::kFloat).requires_grad_(),
                     weight = Normal({24, 8}, 2, at::kFloat).requires_grad_(),
                     gamma = Normal({heads ? 4 : 12}, 3, at::kFloat).requires_grad_(),
                     beta = Normal({heads ? 4 : 12}, 4, at::kFloat).requires_grad_();
    const std::vector<LinearPart> parts = LinearInParts(x, weight, {12, 12});
    std::vector<LayerNormInput> inputs;
    for (const LinearPart& part : parts) {
      const at::Tensor rows = columns ? part.y : part.y.contiguous();
      inputs.push_back({.x = heads ? rows.unflatten(-1, {3, 4}) : rows,
                        .gamma = gamma,
                        .beta = beta,
                        .x_gradient = columns && !heads ? part.gradient : ColumnSlice()});
    }
    at::Tensor y;
    for (const LayerNormInput& input : inputs) {
      const at::Tensor one = LayerNorms({input}, kEps)[0].flatten(2);
      y = y.defined() ? y * one : one;
    }
    std::vector<at::Tensor> results =
        torch::autograd::grad({y}, {x, weight, gamma, beta}, {Normal({2, 30, 12}, 5, at::kFloat)});
    results.push_back(y);
    return results;
  };
  for (const bool heads : {false, true}) {
    SCOPED_TRACE(heads);
    test::ExpectBitEqual(run(true, heads), run(false, heads));
  }
}

TEST(LayerNormTest, RowsOfAnyLayoutAndNoRows) {
  const at::Tensor wide = Normal({20, 60}, 1, at::kFloat), gamma = Normal({20}, 2, at::kFloat);
  const auto norm = [&](const at::Tensor& x) {
    return LayerNorms({{.x = x, .gamma = gamma, .beta = {}}}, kEps)[0];
  };
  EXPECT_TRUE(test::BitEqual(norm(wide.t()), norm(wide.t().contiguous())));
  EXPECT_EQ(norm(wide.narrow(0, 0, 0).narrow(1, 0, 20)).numel(), 0);
  // gamma and beta are strided, too.
  const at::Tensor columns = Normal({20, 2}, 3, at::kFloat), rows = wide.t().contiguous();
  const auto scaled = [&](const at::Tensor& by, const at::Tensor& plus) {
    return LayerNorms({{.x = rows, .gamma = by, .beta = plus}}, kEps)[0];
  };
  EXPECT_TRUE(
      test::BitEqual(scaled(columns.select(1, 0), columns.select(1, 1)),
                     scaled(columns.select(1, 0).contiguous(), columns.select(1, 1).contiguous())));
  // The output for a constant row is beta.
  EXPECT_EQ(norm(at::zeros({3, 20}, at::kFloat) + 7).abs().max().item<float>(), 0);
}

// More parts than one pass supports, and one with a different number of rows.
TEST(LayerNormTest, PartsBeyondAPass) {
  std::vector<LayerNormInput> parts;
  for (uint64_t i = 0; i < 5; ++i)
    parts.push_back({.x = Normal({i == 1 ? 3 : 7, 5}, i, at::kFloat),
                     .gamma = Normal({5}, 10 + i, at::kFloat),
                     .beta = {}});
  const std::vector<at::Tensor> together = LayerNorms(parts, kEps);
  for (size_t i = 0; i < parts.size(); ++i)
    EXPECT_TRUE(test::Close(together[i], LayerNorms({parts[i]}, kEps)[0], 1e-6)) << i;
}

TEST(LayerNormTest, BadInput) {
  const at::Tensor x = Normal({6, 10}, 1, at::kFloat), gamma = Normal({10}, 2, at::kFloat);
  EXPECT_HL_ERROR(LayerNorms({{.x = x.to(at::kHalf), .gamma = gamma, .beta = {}}}, kEps),
                  ExitCode::kUsage, "LayerNorms does not support fp16. Use fp32, bf16 or fp64.");
  EXPECT_HL_ERROR(LayerNorms({{.x = x, .gamma = gamma.narrow(0, 0, 9), .beta = {}}}, kEps),
                  ExitCode::kInternal, "gamma [9] fp32 on cpu");
}

}  // namespace
}  // namespace halflife::ops
