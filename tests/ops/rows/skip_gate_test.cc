// The skip connection and gate behind a state-space scan equal their formula.
#include "ops/rows/skip_gate.h"

#include <ATen/ops/zeros.h>

#include <cmath>

#include "ops/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Normal;
using Inputs = std::vector<at::Tensor>;

// y, x, skip and, if there is a fourth input, a gate.
at::Tensor Gated(const Inputs& in) {
  return SkipGate(
      {.y = in[0], .x = in[1], .skip = in[2], .gate = in.size() > 3 ? in[3] : at::Tensor()});
}

Inputs RandomInputs(int64_t num_rows, int64_t num_heads, int64_t head_dim, bool gated) {
  const int64_t dim = num_heads * head_dim;
  Inputs in = {Normal({num_rows, dim}, 1), Normal({num_rows, dim}, 2), Normal({num_heads}, 3)};
  if (gated) in.push_back(2 * Normal({num_rows, dim}, 4));
  return in;
}

TEST(SkipGateTest, IsTheFormula) {
  const Inputs in = RandomInputs(3, 2, 4, true);
  const at::Tensor gated = Gated(in), ungated = Gated({in[0], in[1], in[2]});
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t i = 0; i < 8; ++i) {
      const double z = in[3][row][i].item<double>();
      const double sum =
          in[0][row][i].item<double>() + in[2][i / 4].item<double>() * in[1][row][i].item<double>();
      EXPECT_NEAR(ungated[row][i].item<double>(), sum, 1e-15);
      EXPECT_NEAR(gated[row][i].item<double>(), sum * z / (1 + std::exp(-z)), 1e-14);
    }
  }
}

// The gradient of skip sums 150 rows of up to 64 channels: 2^-24 of sums up to 200, with terms of
// either sign.
TEST(SkipGateTest, FusedLoopsMatchFp64) {
  for (const auto& [num_heads, head_dim] : {std::pair{1, 1}, {3, 5}, {2, 64}, {33, 8}}) {
    SCOPED_TRACE(testing::Message() << num_heads << " heads of " << head_dim);
    for (const bool gated : {true, false})
      test::ExpectFloatMatchesDouble(Gated, RandomInputs(150, num_heads, head_dim, gated), 3e-6);
  }
}

TEST(SkipGateTest, Bf16IsRoundedOnce) {
  for (const auto& [num_heads, head_dim] : {std::pair{1, 1}, {3, 5}, {4, 32}}) {
    SCOPED_TRACE(testing::Message() << num_heads << " heads of " << head_dim);
    for (const bool gated : {true, false}) {
      Inputs in = RandomInputs(70, num_heads, head_dim, gated);
      in[2] = in[2].to(at::kFloat);
      test::ExpectBf16MatchesDouble(Gated, in);
    }
  }
}

TEST(SkipGateTest, GradientsAreFiniteDifferences) {
  const at::Tensor weights = Normal({4, 6}, 9);
  for (const bool gated : {true, false})
    test::ExpectFiniteDifferences([&](const auto& in) { return (Gated(in) * weights).sum(); },
                                  RandomInputs(4, 2, 3, gated));
}

// x and the gate may be columns of a wider matrix.
TEST(SkipGateTest, StridedRowsNoRowsAndThreads) {
  const auto run = [](bool strided) {
    Inputs in = RandomInputs(60, 2, 8, true);
    for (at::Tensor& x : in) x = x.to(at::kFloat);
    if (strided) {
      for (const size_t i : {1, 3}) {
        const at::Tensor wide = at::zeros({60, 40}, at::kFloat);
        wide.narrow(1, 8, 16).copy_(in[i]);
        in[i] = wide.narrow(1, 8, 16);
      }
    }
    for (at::Tensor& leaf : in) leaf = leaf.detach().requires_grad_();
    const at::Tensor y = Gated(in);
    Inputs results = {y};
    for (const auto& grad : torch::autograd::grad({y.square().sum()}, in)) results.push_back(grad);
    return results;
  };
  const Inputs strided = run(true), dense = run(false);
  for (size_t i = 0; i < dense.size(); ++i) EXPECT_TRUE(test::BitEqual(strided[i], dense[i])) << i;
  const at::Tensor none = at::zeros({0, 6}, at::kFloat),
                   skip = Normal({2}, 1, at::kFloat).requires_grad_();
  const at::Tensor y = Gated({none, none, skip, none});
  EXPECT_EQ(y.numel(), 0);
  EXPECT_TRUE(torch::autograd::grad({y.sum()}, {skip})[0].eq(0).all().item<bool>());
  test::ExpectSameBitsWithThreads([] {
    Inputs in = RandomInputs(700, 3, 16, true);
    for (at::Tensor& leaf : in) leaf = leaf.to(at::kFloat).requires_grad_();
    return torch::autograd::grad({Gated(in)}, in, {Normal({700, 48}, 4, at::kFloat)});
  });
}

TEST(SkipGateTest, BadInput) {
  const at::Tensor y = Normal({6, 10}, 1, at::kFloat), skip = Normal({3}, 2, at::kFloat);
  EXPECT_HL_ERROR(Gated({y, y, skip}), ExitCode::kInternal,
                  "SkipGate got y [6, 10] fp32 on cpu with x [6, 10] fp32 on cpu, skip [3] fp32",
                  "Use y, x and gate [..., H P] of one dtype and skip [H], on one device.");
  EXPECT_HL_ERROR(Gated({y, y, skip.narrow(0, 0, 2), y.narrow(0, 0, 3)}), ExitCode::kInternal,
                  "gate [3, 10] fp32 on cpu");
  EXPECT_HL_ERROR(Gated({y.to(at::kHalf), y.to(at::kHalf), skip}), ExitCode::kUsage,
                  "SkipGate does not support fp16. Use fp32, bf16 or fp64.");
}

}  // namespace
}  // namespace halflife::ops
