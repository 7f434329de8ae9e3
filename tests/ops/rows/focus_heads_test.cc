// The fused inputs and gates of focus pooling equal their separate steps.
#include "ops/rows/focus_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <vector>

#include "ops/gradient_check.h"
#include "ops/linear/linear.h"
#include "ops/rows/layer_norm.h"
#include "ops/rows/row_operations.h"
#include "ops/torch/side_by_side.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::AsOneRow;
using test::FocusForm;
using test::FocusGateOperands;
using test::FocusOperands;
using test::Normal;

constexpr double kEps = 1e-2, kScale = 0.3;

// Computes standardised heads, dot products and columns one after the other.
FocusLeaves StepByStep(const FocusForm& form, const std::vector<at::Tensor>& in) {
  const auto heads = [&](const at::Tensor& x, bool norm) {
    const at::Tensor split = x.unflatten(-1, {test::kFocusHeads, -1});
    return norm ? RealNorm(split, kEps) : split;
  };
  const at::Tensor k = heads(form.times ? in[0] * in[1] : in[0], form.norm);
  const at::Tensor f = heads(form.of_tokens ? in[2] : in[3].flatten(), form.norm);
  at::Tensor l = (k * f).sum(-1) * kScale;
  if (form.elu) l = at::where(l > 0, at::log1p(l.clamp_min(0)), l);
  std::vector<at::Tensor> payload;
  if (form.pool_x) payload.push_back(k);
  if (form.value) payload.push_back(heads(in[4], form.norm_value));
  return {.log_weight = l, .payload = at::cat(payload, -1)};
}

TEST(FocusLeavesTest, AreTheStepsOneAfterTheOther) {
  for (const FocusForm& form : test::FocusForms()) {
    SCOPED_TRACE(form.name);
    test::ExpectSameFunction(
        [&](const auto& in) { return AsOneRow(form, test::MakeFocusLeaves(form, in), in); },
        [&](const auto& in) { return AsOneRow(form, StepByStep(form, in), in); },
        test::To(at::kDouble, FocusOperands(60, 5)), 1e-12);
  }
}

TEST(FocusGateTest, IsTheStepsOneAfterTheOther) {
  for (const bool norm : {false, true})
    for (const bool apart : {false, true}) {
      SCOPED_TRACE(testing::Message() << norm << apart);
      const auto steps = [&](const std::vector<at::Tensor>& in) {
        const at::Tensor heads = in[0].unflatten(-1, {-1, 5});
        const at::Tensor q = norm ? RealNorm(heads, kEps) : heads;
        const at::Tensor dot = (q * in[1].narrow(-1, 0, 5)).sum(-1, /*keepdim=*/true);
        return (at::sigmoid(dot * kScale) * in[1].narrow(-1, apart ? 5 : 0, 5)).flatten(2);
      };
      test::ExpectSameFunction([&](const auto& in) { return test::FocusGate(norm, in); }, steps,
                               FocusGateOperands(apart, 60, 5), 1e-12);
    }
}

// Columns of one product give the bits of their copies.
TEST(FocusLeavesTest, ColumnsAreReadAndWrittenInTheirPlace) {
  const JoinedProductsEverywhere joins;
  const auto run = [&](bool columns) {
    const at::Tensor x = Normal({2, 30, 8}, 1, at::kFloat).requires_grad_(),
                     weight = Normal({48, 8}, 2, at::kFloat).requires_grad_();
    std::vector<LinearPart> parts = LinearInParts(x, weight, {12, 12, 12, 12});
    if (!columns)
      for (LinearPart& part : parts) part = {.y = part.y.contiguous()};
    const FocusLeaves leaves = MakeFocusLeaves(
        {.x = parts[2].y,
         .direction = parts[1].y,
         .value = parts[3].y,
         .x_gradient = parts[2].gradient,
         .direction_gradient = parts[1].gradient,
         .value_gradient = parts[3].gradient},
        {.head_dim = 4, .norm = true, .norm_value = true, .eps = kEps, .scale = kScale});
    const at::Tensor pooled = leaves.payload * leaves.log_weight.unsqueeze(-1);
    const at::Tensor y =
        FocusGate({.query = parts[0].y, .pooled = pooled, .query_gradient = parts[0].gradient},
                  {.norm = true, .eps = kEps, .scale = kScale});
    std::vector<at::Tensor> results =
        torch::autograd::grad({y}, {x, weight}, {Normal({2, 30, 12}, 5, at::kFloat)});
    results.push_back(y);
    return results;
  };
  test::ExpectBitEqual(run(true), run(false));
}

TEST(FocusLeavesTest, NoTokens) {
  const std::vector<at::Tensor> none = test::To(at::kFloat, FocusOperands(0, 8));
  EXPECT_EQ(test::MakeFocusLeaves({}, none).payload.sizes(), (std::vector<int64_t>{2, 0, 3, 16}));
}

TEST(FocusLeavesTest, BadInput) {
  const at::Tensor x = Normal({2, 5, 12}, 1, at::kFloat);
  EXPECT_HL_ERROR(MakeFocusLeaves({.x = x.to(at::kHalf), .direction = x}, {.head_dim = 4}),
                  ExitCode::kUsage, "FocusLeaves does not support fp16. Use fp32, bf16 or fp64.");
  EXPECT_HL_ERROR(MakeFocusLeaves({.x = x, .direction = x}, {.head_dim = 5}), ExitCode::kInternal,
                  "with heads of 5");
  EXPECT_HL_ERROR(MakeFocusLeaves({.x = x, .direction = x.to(at::kDouble)}, {.head_dim = 4}),
                  ExitCode::kInternal, "with direction [2, 5, 12] fp64 on cpu");
  EXPECT_HL_ERROR(FocusGate({.query = x, .pooled = Normal({2, 5, 3, 6}, 2, at::kFloat)}, {}),
                  ExitCode::kInternal, "with pooled rows of 6 channels");
}

}  // namespace
}  // namespace halflife::ops
