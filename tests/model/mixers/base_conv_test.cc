// base_conv equals its direct sum, with short and long filters, and starts as Zoology's code does.
#include <ATen/ops/empty.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>

#include <cmath>
#include <numbers>

#include "model/mixers/built_mixer.h"
#include "model/mixers/direct_convolution.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;

constexpr int64_t kDim = 6, kSeqLen = 11;

at::Tensor Gate(const BuiltMixer& built, const at::Tensor& u) {
  return u.matmul(built["projection.weight"].t()) + built["projection.bias"];
}

TEST(BaseConvTest, IsTheDirectSum) {
  for (const int64_t taps : {1, 2, 3, 4}) {
    for (const bool use_act : {false, true}) {
      BuiltMixer built(MixerConfig("base_conv", {{"kernel_size", taps}, {"use_act", use_act}}),
                       kDim);
      built.FillZeros();
      const at::Tensor u = Normal({2, kSeqLen, kDim}, 1);
      at::Tensor conv = test::ShortSum(u, built["conv.conv.weight"]) + built["conv.conv.bias"];
      at::Tensor gate = Gate(built, u);
      if (use_act) conv = at::silu(conv), gate = at::silu(gate);
      EXPECT_TRUE(Close(built.Run(u), conv * gate + u, 1e-13)) << taps << " taps, act " << use_act;
    }
  }
}

TEST(BaseConvTest, OneTapDependsOnlyOnTheToken) {
  BuiltMixer built(MixerConfig("base_conv", {{"kernel_size", 1}}), kDim);
  built.FillZeros();
  const at::Tensor u = Normal({1, kSeqLen, kDim}, 1);
  const at::Tensor w = built["conv.conv.weight"].view({kDim}), b = built["conv.conv.bias"];
  EXPECT_TRUE(Close(built.Run(u), (w * u + b) * Gate(built, u) + u, 1e-13));
}

TEST(BaseConvTest, TheLongFilterIsANetworkOfPosition) {
  constexpr int64_t kFilterLen = 20;
  BuiltMixer built(MixerConfig("base_conv", {{"kernel_size", -1}, {"filter_len", kFilterLen}}),
                   kDim);
  built.FillZeros();
  at::Tensor features = at::empty({kSeqLen, 3}, at::kDouble);
  for (int64_t t = 0; t < kSeqLen; ++t) {
    const double angle = 1e-4 * 2 * std::numbers::pi * static_cast<double>(t) / kFilterLen;
    features[t][0] = static_cast<double>(t) / (kFilterLen - 1);
    features[t][1] = std::cos(angle);
    features[t][2] = -std::sin(angle);
  }
  const at::Tensor inner =
      at::relu(features.matmul(built["conv.mlp.0.weight"].t()) + built["conv.mlp.0.bias"]);
  const at::Tensor filter = inner.matmul(built["conv.mlp.2.weight"].t()) + built["conv.mlp.2.bias"];
  const at::Tensor u = Normal({2, kSeqLen, kDim}, 1);
  EXPECT_TRUE(Close(built.Run(u), (test::LongSum(u, filter) + u) * Gate(built, u) + u, 1e-12));
}

TEST(BaseConvTest, StartsAsInZoologyAndDecaysOnlyItsMatrix) {
  constexpr int64_t kWide = 64;
  const BuiltMixer built(MixerConfig("base_conv"), kWide, at::kDouble, 0.02);
  EXPECT_EQ(built.parameters().num_elements(), kWide * kWide + 5 * kWide);
  // The standard deviation of 4096 normals has a relative standard error of 1.1 %. The bound is
  // five of these.
  EXPECT_NEAR(built["projection.weight"].std().item<double>(), 0.02, 0.0012);
  EXPECT_EQ(built["projection.bias"].abs().max().item<double>(), 0);
  const double bound = 1 / std::sqrt(3.0);
  for (const char* name : {"conv.conv.weight", "conv.conv.bias"}) {
    const at::Tensor initial = built[name].abs();
    EXPECT_LE(initial.max().item<double>(), bound) << name;
    EXPECT_GT(initial.max().item<double>(), 0.8 * bound) << name;
    EXPECT_FALSE(built.spec(name).weight_decay) << name;
  }
  EXPECT_TRUE(built.spec("projection.weight").weight_decay);
  EXPECT_EQ(built.spec("conv.conv.bias").region, dist::Region::kFp32);
}

TEST(BaseConvTest, NoTapsAreRefused) {
  MixerConfig config("base_conv", {{"kernel_size", 0}});
  const std::vector<std::string> problems = config.Resolve({.model_dim = kDim, .num_layers = 1});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("kernel_size is 0. Use a number of taps"), std::string::npos)
      << problems[0];
}

}  // namespace
}  // namespace halflife::model
