// The skip connection and gate behind a state-space scan equal their formula.
// row_operations_test.cc has their other properties.
#include "ops/rows/state_space_gates.h"

#include <cmath>

#include "ops/random_tensors.h"
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

TEST(SkipGateTest, IsTheFormula) {
  const Inputs in = {Normal({3, 8}, 1), Normal({3, 8}, 2), Normal({2}, 3), 2 * Normal({3, 8}, 4)};
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
