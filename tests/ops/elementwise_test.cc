// The exponential function and bf16 storage of fused loops, and products with a gate.
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>

#include "kernels/common/cpu/math.h"
#include "ops/random_tensors.h"
#include "ops/rows/swiglu.h"
#include "ops/torch/side_by_side.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Normal;

TEST(ExpTest, TwoUlpsOverTheWholeRange) {
  for (double x = -86.9; x < 88.0; x += 0.00173) {
    const auto rounded = static_cast<float>(x);
    const double want = std::exp(static_cast<double>(rounded));
    ASSERT_NEAR(kernels::Exp(rounded) / want, 1.0, 2.5e-7) << "at " << x;
  }
}

TEST(ExpTest, Edges) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(kernels::Exp(0.0f), 1.0f);
  EXPECT_EQ(kernels::Exp(-kInfinity), 0.0f);
  EXPECT_EQ(kernels::Exp(-1000.0f), 0.0f);
  EXPECT_EQ(kernels::Exp(kInfinity), kInfinity);
  EXPECT_EQ(kernels::Exp(100.0f), kInfinity);
  EXPECT_TRUE(std::isnan(kernels::Exp(std::nanf(""))));
  EXPECT_EQ(kernels::Sigmoid(-kInfinity), 0.0f);
  EXPECT_EQ(kernels::Sigmoid(kInfinity), 1.0f);
}

TEST(Bf16Test, RoundsAsLibTorch) {
  at::Tensor x = Normal({4000}, 1, at::kFloat);
  auto* data = x.mutable_data_ptr<float>();
  const float ties[] = {1.00390625f, 1.01171875f, -1.00390625f, 0.0f, -0.0f, 3.4e38f, 1e-39f};
  std::copy(std::begin(ties), std::end(ties), data);
  const at::Tensor want = x.to(at::kBFloat16).view(at::kShort);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const Bf16 got = kernels::Narrow<Bf16>(data[i]);
    ASSERT_EQ(got.bits, static_cast<uint16_t>(want.const_data_ptr<int16_t>()[i])) << data[i];
    ASSERT_EQ(Widen(got), x[i].to(at::kBFloat16).item<float>());
  }
  EXPECT_TRUE(std::isnan(Widen(kernels::Narrow<Bf16>(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(Widen(kernels::Narrow<Bf16>(std::bit_cast<float>(0xffffffffu)))));
}

TEST(SwiGluTest, IsTheFormula) {
  const at::Tensor gate = Normal({40}, 1) * 4, up = Normal({40}, 2);
  EXPECT_TRUE(test::Close(SwiGlu(gate, up), gate / (1 + (-gate).exp()) * up, 1e-14));
  EXPECT_TRUE(test::Close(Glu(gate, up), up / (1 + (-gate).exp()), 1e-14));
}

// Very large gates are fully open or closed. A NaN stays visible.
TEST(SwiGluTest, FarValuesAndNan) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto run = [&](float first_gate, float first_up, float first_gradient) {
      const at::Tensor gate = at::tensor({first_gate, 200.0f}).to(dtype).requires_grad_(),
                       up = at::tensor({first_up, 3.0f}).to(dtype).requires_grad_(),
                       y = SwiGlu(gate, up);
      auto results =
          torch::autograd::grad({y}, {gate, up}, {at::tensor({first_gradient, 1.0f}).to(dtype)});
      results.push_back(y.detach());
      return results;  // dgate, dup, y
    };
    const auto far = run(-200, 3, 1);
    EXPECT_TRUE(far[0].equal(at::tensor({0.0f, 3.0f}).to(dtype)));
    EXPECT_TRUE(far[1].equal(at::tensor({0.0f, 200.0f}).to(dtype)));
    EXPECT_TRUE(far[2].equal(at::tensor({0.0f, 600.0f}).to(dtype)));
    EXPECT_TRUE(run(NAN, 1, 1)[2][0].isnan().item<bool>());
    EXPECT_TRUE(run(1, NAN, 1)[0][0].isnan().item<bool>());
    EXPECT_TRUE(run(1, 1, NAN)[1][0].isnan().item<bool>());
  }
}

TEST(SwiGluTest, NonContiguousOperands) {
  const at::Tensor gate = Normal({6, 10}, 1, at::kFloat), up = Normal({10, 6}, 2, at::kFloat);
  EXPECT_TRUE(test::BitEqual(SwiGlu(gate, up.t()), SwiGlu(gate, up.t().contiguous())));
}

// gate and up as columns of one matrix, in either order, give the same bits as separate tensors,
// and their gradients are columns of one matrix. There are 2,100 elements, so that a block of
// threads ends within a row. Rows of 6 columns with halves of three cannot be read in place.
TEST(SwiGluTest, HalvesOfOneMatrix) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {6, 24}) {
      for (const bool up_first : {false, true}) {
        const at::Tensor both = Normal({1400, 2, 2 * width}, 1, dtype);
        const auto half = [&](bool second) {
          return both.narrow(-1, second ? width : 0, width).detach().requires_grad_();
        };
        const at::Tensor gate = half(up_first), up = half(!up_first),
                         gate_copy = gate.detach().clone().contiguous().requires_grad_(),
                         up_copy = up.detach().clone().contiguous().requires_grad_(),
                         dout = Normal({1400, 2, width}, 2, dtype);
        ASSERT_FALSE(gate.is_contiguous());
        const at::Tensor got = SwiGlu(gate, up), want = SwiGlu(gate_copy, up_copy);
        EXPECT_TRUE(test::BitEqual(got, want));
        const auto grads = torch::autograd::grad({got}, {gate, up}, {dout});
        want.backward(dout);
        EXPECT_TRUE(test::BitEqual(grads[0].contiguous(), gate_copy.grad()));
        EXPECT_TRUE(test::BitEqual(grads[1].contiguous(), up_copy.grad()));
        EXPECT_EQ(AreAdjacentHalves(grads[0], grads[1]), width == 24);
        EXPECT_EQ(grads[0].storage_offset() > grads[1].storage_offset(), width == 24 && up_first);
      }
    }
  }
}

TEST(SwiGluTest, BadInput) {
  const at::Tensor gate = Normal({6, 10}, 1, at::kFloat), up = Normal({6, 10}, 2, at::kFloat);
  const ExitCode internal = ExitCode::kInternal;
  EXPECT_HL_ERROR(SwiGlu(gate, up.narrow(0, 0, 5)), internal,
                  "SwiGlu of gate [6, 10] fp32 on cpu and up [5, 10] fp32 on cpu",
                  "one shape, dtype and device for both.");
  EXPECT_HL_ERROR(SwiGlu(gate.narrow(0, 0, 1), up), internal,
                  "gate [1, 10]");  // No broadcasting.
  EXPECT_HL_ERROR(SwiGlu(gate, up.to(at::kBFloat16)), internal, "up [6, 10] bf16");
  EXPECT_HL_ERROR(SwiGlu(gate, up.to(at::kMeta)), internal, "up [6, 10] fp32 on meta");
  EXPECT_HL_ERROR(SwiGlu(gate.to(at::kHalf), up.to(at::kHalf)), ExitCode::kUsage,
                  "SwiGlu does not support fp16. Use fp32, bf16 or fp64.");
}

}  // namespace
}  // namespace halflife::ops
