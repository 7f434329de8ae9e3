// The fused inputs and gates of focus pooling equal their separate steps.
#include "ops/rows/focus_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "ops/gradient_check.h"
#include "ops/linear/linear.h"
#include "ops/rows/real_norm.h"
#include "ops/sink_check.h"
#include "ops/torch/side_by_side.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Normal;

constexpr double kEps = 1e-2, kScale = 0.3;

// The requested leaves: of x or of a product with another tensor, with directions per token or per
// head, a value, and which of them are standardised.
struct Form {
  int64_t dim = 4;
  bool times = false, of_tokens = true, value = true, pool_x = true, norm = true, norm_value = true,
       elu = false;
};
std::vector<Form> Forms(int64_t dim) {
  return {{.dim = dim},
          {.dim = dim, .pool_x = false, .norm_value = false},
          {.dim = dim, .norm = false, .norm_value = false, .elu = true},
          {.dim = dim, .of_tokens = false, .value = false},
          {.dim = dim, .times = true, .of_tokens = false, .value = false},
          {.dim = dim, .times = true, .of_tokens = false, .value = false, .norm = false}};
}
std::string Name(const Form& f) {
  return std::to_string(f.dim) + " channels" + (f.times ? ", times" : "") +
         (f.of_tokens ? ", of tokens" : "") + (f.value ? ", value" : "") +
         (f.pool_x ? ", x pooled" : "") + (f.norm ? ", norm" : "") + (f.elu ? ", elu" : "");
}

constexpr int64_t kHeads = 3;

FocusLeavesConfig ConfigOf(const Form& form) {
  return {.head_dim = form.dim,
          .norm = form.norm,
          .norm_value = form.norm_value,
          .pool_x = form.pool_x,
          .eps = kEps,
          .scale = kScale,
          .elu = form.elu};
}
FocusLeaves LeavesOf(const Form& form, const std::vector<at::Tensor>& in) {
  return MakeFocusLeaves({.x = in[0],
                          .times = form.times ? in[1] : at::Tensor(),
                          .direction = form.of_tokens ? in[2] : in[3],
                          .value = form.value ? in[4] : at::Tensor()},
                         ConfigOf(form));
}
// Returns all outputs as one row. Every input is used, so all have a gradient.
at::Tensor AsOne(const FocusLeaves& leaves, const std::vector<at::Tensor>& in) {
  at::Tensor all =
      at::cat({leaves.log_weight.unsqueeze(-1).to(leaves.payload.scalar_type()), leaves.payload},
              -1)
          .flatten(2);
  for (const at::Tensor& x : in) all = all + 0 * x.sum().to(all.scalar_type());
  return all;
}
std::vector<at::Tensor> Operands(int64_t tokens, int64_t dim) {
  const std::vector<int64_t> rows = {2, tokens, kHeads * dim};
  return {Normal(rows, 1) + 0.2, Normal(rows, 2), Normal(rows, 3), Normal({kHeads, dim}, 4),
          Normal(rows, 5)};
}

// Computes standardised heads, dot products and columns one after the other.
FocusLeaves StepByStep(const Form& form, const std::vector<at::Tensor>& in) {
  const auto heads = [&](const at::Tensor& x, bool norm) {
    const at::Tensor split = x.unflatten(-1, {-1, form.dim});
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
  for (const Form& form : Forms(5)) {
    SCOPED_TRACE(Name(form));
    std::vector<at::Tensor> in;
    for (const at::Tensor& x : Operands(30, 5)) in.push_back(x.clone().requires_grad_());
    const at::Tensor got = AsOne(LeavesOf(form, in), in), want = AsOne(StepByStep(form, in), in);
    const at::Tensor dy = Normal(got.sizes().vec(), 9);
    EXPECT_TRUE(test::Close(got, want, 1e-12));
    const auto got_grads = torch::autograd::grad({got}, in, {dy}),
               want_grads = torch::autograd::grad({want}, in, {dy});
    for (size_t i = 0; i < in.size(); ++i)
      EXPECT_TRUE(test::Close(got_grads[i], want_grads[i], 1e-12)) << i;
  }
}

// 2^-24 of values up to 10, with about ten roundings. The gradient of a vector sums 400 tokens.
TEST(FocusLeavesTest, FusedLoopsMatchFp64) {
  for (const int64_t dim : {3, 7, 16, 128, 130})  // The last one uses the separate steps.
    for (const Form& form : Forms(dim)) {
      SCOPED_TRACE(Name(form));
      test::ExpectFloatMatchesDouble([&](const auto& in) { return AsOne(LeavesOf(form, in), in); },
                                     Operands(200, dim), 1e-5);
    }
}

TEST(FocusLeavesTest, GradientsAreFiniteDifferences) {
  for (const Form& form : Forms(3)) {
    SCOPED_TRACE(Name(form));
    test::ExpectFiniteDifferences(
        [&](const auto& in) { return AsOne(LeavesOf(form, in), in).square().sum(); },
        Operands(2, 3));
  }
}

// A bf16 payload is rounded once. Log weights stay fp32, and the cast in AsOne rounds them.
TEST(FocusLeavesTest, Bf16IsWidened) {
  for (const Form& form : Forms(16)) {
    SCOPED_TRACE(Name(form));
    std::vector<at::Tensor> in = Operands(100, 16);
    in[3] = in[3].to(at::kFloat);
    const auto leaves = [&](const auto& x) {
      std::vector<at::Tensor> y = x;
      if (x[0].scalar_type() == at::kDouble) y[3] = y[3].to(at::kDouble);
      return AsOne(LeavesOf(form, y), y);
    };
    test::ExpectBf16MatchesDouble(leaves, in, /*roundings=*/2);
  }
}

TEST(FocusLeavesTest, ASinkGetsTheVectorsGradient) {
  for (const bool added : {false, true})
    for (const bool norm : {false, true}) {
      std::vector<at::Tensor> in;
      for (const at::Tensor& x : Operands(150, 8)) in.push_back(x.to(at::kFloat).requires_grad_());
      const FocusLeaves leaves =
          LeavesOf({.dim = 8, .of_tokens = false, .value = false, .norm = norm}, in);
      const at::Tensor y = at::cat({leaves.log_weight.unsqueeze(-1), leaves.payload}, -1);
      test::ExpectGradientsInSinks(y, Normal(y.sizes().vec(), 9, at::kFloat), {in[3]}, added);
    }
}

// sigmoid(scale q . seen) times the passed channels, which may be the same as `seen`.
at::Tensor GateOf(bool norm, const std::vector<at::Tensor>& in) {
  return FocusGate({.query = in[0], .pooled = in[1]}, {.norm = norm, .eps = kEps, .scale = kScale});
}
std::vector<at::Tensor> GateOperands(int64_t tokens, int64_t dim, bool apart) {
  return {Normal({2, tokens, kHeads * dim}, 1),
          Normal({2, tokens, kHeads, apart ? 2 * dim : dim}, 2)};
}

TEST(FocusGateTest, IsTheStepsOneAfterTheOther) {
  for (const bool norm : {false, true})
    for (const bool apart : {false, true}) {
      SCOPED_TRACE(testing::Message() << norm << apart);
      std::vector<at::Tensor> in;
      for (const at::Tensor& x : GateOperands(30, 5, apart))
        in.push_back(x.clone().requires_grad_());
      const at::Tensor heads = in[0].unflatten(-1, {-1, 5});
      const at::Tensor q = norm ? RealNorm(heads, kEps) : heads;
      const at::Tensor dot = (q * in[1].narrow(-1, 0, 5)).sum(-1, /*keepdim=*/true);
      const at::Tensor want =
          (at::sigmoid(dot * kScale) * in[1].narrow(-1, apart ? 5 : 0, 5)).flatten(2);
      const at::Tensor got = GateOf(norm, in), dy = Normal(got.sizes().vec(), 9);
      EXPECT_TRUE(test::Close(got, want, 1e-12));
      const auto got_grads = torch::autograd::grad({got}, in, {dy}),
                 want_grads = torch::autograd::grad({want}, in, {dy});
      for (size_t i = 0; i < in.size(); ++i)
        EXPECT_TRUE(test::Close(got_grads[i], want_grads[i], 1e-12)) << i;
    }
}

TEST(FocusGateTest, FusedLoopsMatchFp64) {
  for (const int64_t dim : {3, 7, 16, 128, 130})
    for (const bool norm : {false, true})
      for (const bool apart : {false, true}) {
        SCOPED_TRACE(testing::Message() << dim << norm << apart);
        const auto gate = [&](const auto& in) { return GateOf(norm, in); };
        test::ExpectFloatMatchesDouble(gate, GateOperands(150, dim, apart), 1e-5);
        test::ExpectBf16MatchesDouble(gate, GateOperands(150, dim, apart), /*roundings=*/2);
      }
}

TEST(FocusGateTest, GradientsAreFiniteDifferences) {
  for (const bool apart : {false, true})
    test::ExpectFiniteDifferences([&](const auto& in) { return GateOf(true, in).square().sum(); },
                                  GateOperands(2, 3, apart));
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
    const FocusLeaves leaves = MakeFocusLeaves({.x = parts[2].y,
                                                .direction = parts[1].y,
                                                .value = parts[3].y,
                                                .x_gradient = parts[2].gradient,
                                                .direction_gradient = parts[1].gradient,
                                                .value_gradient = parts[3].gradient},
                                               ConfigOf({.dim = 4}));
    const at::Tensor pooled = leaves.payload * leaves.log_weight.unsqueeze(-1);
    const at::Tensor y =
        FocusGate({.query = parts[0].y, .pooled = pooled, .query_gradient = parts[0].gradient},
                  {.norm = true, .eps = kEps, .scale = kScale});
    std::vector<at::Tensor> results =
        torch::autograd::grad({y}, {x, weight}, {Normal({2, 30, 12}, 5, at::kFloat)});
    results.push_back(y);
    return results;
  };
  const auto got = run(true), want = run(false);
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(test::BitEqual(got[i].contiguous(), want[i].contiguous())) << i;
}

TEST(FocusLeavesTest, NoTokensAndThreads) {
  std::vector<at::Tensor> none;
  for (const at::Tensor& x : Operands(0, 8)) none.push_back(x.to(at::kFloat));
  EXPECT_EQ(LeavesOf({.dim = 8}, none).payload.sizes(), (std::vector<int64_t>{2, 0, kHeads, 16}));
  test::ExpectSameBitsWithThreads([] {
    std::vector<at::Tensor> in;
    for (const at::Tensor& x : Operands(700, 8)) in.push_back(x.to(at::kFloat).requires_grad_());
    const at::Tensor y = AsOne(LeavesOf({.dim = 8, .of_tokens = false}, in), in);
    return torch::autograd::grad({y}, in, {Normal(y.sizes().vec(), 9, at::kFloat)});
  });
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
