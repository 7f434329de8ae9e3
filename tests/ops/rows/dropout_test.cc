// Dropout masks depend only on seed, sample, position and channel.
#include "ops/rows/dropout.h"

#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "ops/random_tensors.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

const RandomKey kKey = MakeRandomKey(5, RandomPurpose::kDropout, 3);
constexpr std::array<uint64_t, 2> kSamples = {7, (uint64_t{1} << 40) + 9};

DropoutConfig Config(double rate, int64_t first_position = 0) {
  return {.rate = rate,
          .key = kKey,
          .samples = SampleNumbers(kSamples, at::kCPU),
          .first_position = first_position};
}

// 6 channels are less than a block of draws. 261 are more than one, with an odd end (the last word
// of a draw is unused).
TEST(DropoutTest, IsPhiloxOfSamplePositionAndChannel) {
  constexpr int64_t kDim = 261;
  const at::Tensor y = Dropout(at::ones({2, 3, kDim}), Config(0.25, 10));
  EXPECT_TRUE(test::BitEqual(Dropout(at::ones({2, 3, 6}), Config(0.25, 10)), y.narrow(2, 0, 6)));
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t channel = 0; channel < kDim; ++channel) {
        const RandomCounter draw = Draw(kKey, kSamples[row], static_cast<uint32_t>(10 + t),
                                        static_cast<uint32_t>(channel / 4));
        const float want = ToUniform(draw.x[channel % 4]) < 0.25f ? 0.0f : 1 / 0.75f;
        EXPECT_EQ(y[row][t][channel].item<float>(), want);
      }
    }
  }
}

TEST(DropoutTest, OtherDtypesAndDevicesDrawTheSameMask) {
  const at::Tensor y = Dropout(at::ones({2, 50, 37}), Config(0.3));
  const at::Tensor wide = Dropout(at::ones({2, 50, 37}, at::kDouble), Config(0.3));
  EXPECT_TRUE(test::BitEqual(wide != 0, y != 0));
}

TEST(DropoutTest, KeepsTheMean) {
  const at::Tensor y = Dropout(at::ones({2, 500, 64}), Config(0.1));
  // 64,000 draws: the standard deviation of the mean is sqrt(0.1 / 0.9 / 64000) = 1.3e-3.
  EXPECT_NEAR(y.mean().item<double>(), 1, 6e-3);
}

TEST(DropoutTest, SlicesDrawWhatTheWholeDraws) {
  const at::Tensor x = test::Normal({2, 12, 8}, 1, at::kFloat);
  const at::Tensor whole = Dropout(x, Config(0.5));
  const at::Tensor part = Dropout(x.narrow(1, 5, 7), Config(0.5, 5));
  EXPECT_TRUE(test::BitEqual(part, whole.narrow(1, 5, 7)));
}

TEST(DropoutTest, GradientUsesTheSameMask) {
  const at::Tensor x = test::Normal({2, 12, 8}, 1, at::kFloat).requires_grad_();
  const at::Tensor y = Dropout(x, Config(0.5));
  const at::Tensor grad = torch::autograd::grad({y.sum()}, {x})[0];
  EXPECT_TRUE(test::BitEqual(grad, Dropout(at::ones({2, 12, 8}), Config(0.5))));
}

TEST(DropoutTest, ADroppedInfinityIsZero) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor y = Dropout(at::ones({2, 1, 64}, dtype) / 0, Config(0.5));
    EXPECT_TRUE((y.eq(0) | y.isinf()).all().item<bool>());
    EXPECT_NEAR(y.eq(0).sum().item<double>(), 64, 32);
  }
}

TEST(DropoutTest, NeedsASamplePerRow) {
  EXPECT_HL_ERROR(Dropout(at::ones({3, 2, 4}), Config(0.5)), ExitCode::kInternal,
                  "3 rows needs as many sample numbers, got [2]");
}

TEST(DropoutTest, RefusesOtherDtypes) {
  EXPECT_HL_ERROR(Dropout(at::ones({2, 2, 4}, at::kHalf), Config(0.5)), ExitCode::kUsage,
                  "Dropout does not support fp16. Use fp32, bf16 or fp64.");
}

}  // namespace
}  // namespace halflife::ops
