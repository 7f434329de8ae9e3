// RWKV-4's time mixing: parameters, initial values, and the formula.
#include <ATen/TensorOperators.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <vector>

#include "model/mixers/built_mixer.h"

namespace halflife::model {
namespace {

using test::Normal;

// A layer of two, with fp64 parameters.
struct Layer : test::BuiltMixer {
  explicit Layer(int64_t dim, int64_t layer = 0, const std::vector<Assignment>& options = {})
      : BuiltMixer(MixerConfig("rwkv4", options), dim, at::kDouble, /*std_dev=*/0.02,
                   {.layer = layer, .num_layers = 2, .seed = 3}) {}
};

// Table 6 of ReBased (Aksenov et al., 2024): two layers with two layer norms each, 8192 tokens,
// 1024 positions and a last norm.
TEST(Rwkv4Test, HasAsManyParametersAsPublished) {
  const std::map<int64_t, int64_t> published = {
      {64, 623'872}, {128, 1'313'280}, {256, 2'888'704}, {512, 6'825'984}};
  for (const auto& [dim, count] : published) {
    const int64_t mixer = Layer(dim).parameters().num_elements();
    EXPECT_EQ(mixer, 4 * dim * dim + 5 * dim);
    EXPECT_EQ((8192 + 1024 + 2) * dim + 2 * (mixer + 4 * dim), count) << dim;
  }
}

TEST(Rwkv4Test, NamesItsParametersAsTheOriginal) {
  const Layer layer(6);
  std::map<std::string, bool> decays;
  for (const dist::ParamSpec& spec : layer.parameters().specs())
    decays[spec.name] = spec.weight_decay;
  const std::map<std::string, bool> want = {
      {"time_decay", false},  {"time_first", false},       {"time_mix_k", false},
      {"time_mix_v", false},  {"time_mix_r", false},       {"key.weight", true},
      {"value.weight", true}, {"receptance.weight", true}, {"output.weight", true}};
  EXPECT_EQ(decays, want);
}

// The depth ratios of two layers: the last has 1 and 1/2, the first 0 and 1.
TEST(Rwkv4Test, StartsByItsDepth) {
  constexpr int64_t kDim = 9;
  for (const int64_t number : {0, 1}) {
    const Layer layer(kDim, number);
    const double way = number == 0 ? 0 : 1, rest = number == 0 ? 1 : 0.5;
    for (int64_t h = 0; h < kDim; ++h) {
      const auto expect = [&](const char* name, double want) {
        EXPECT_NEAR(layer[name][h].item<double>(), want, 1e-6 * std::max(1.0, std::abs(want)))
            << name << " " << h << " of layer " << number;
      };
      const double place = static_cast<double>(h) / kDim;
      expect("time_decay", -5 + 8 * std::pow(h / 8.0, 0.7 + 1.3 * way));
      expect("time_first", std::log(0.3) + 0.5 * static_cast<double>((h + 1) % 3 - 1));
      expect("time_mix_k", std::pow(place, rest));
      expect("time_mix_v", std::pow(place, rest) + 0.3 * way);
      expect("time_mix_r", std::pow(place, rest / 2));
    }
  }
  // Uniform in +-1/8: a standard deviation of 0.0722, within 5 standard errors for 4096 draws.
  const Layer layer(64);
  for (const char* name : {"key.weight", "value.weight", "receptance.weight", "output.weight"}) {
    const at::Tensor& weight = layer[name];
    EXPECT_LE(weight.abs().max().item<double>(), 0.125) << name;
    EXPECT_NEAR(weight.square().mean().sqrt().item<double>(), 0.0722, 0.0026) << name;
    EXPECT_NEAR(weight.mean().item<double>(), 0, 5 * 0.0722 / 64) << name;
  }
}

// Outputs, and the gradients of x and of every parameter.
TEST(Rwkv4Test, IsTheSumOverPairs) {
  constexpr int64_t kSeqLen = 20, kDim = 6;
  Layer p(kDim, 1);
  p.ExpectFormula({2, kSeqLen, kDim}, {1e-13, 1e-12}, [&](const at::Tensor& x) {
    const at::Tensor previous = at::zeros_like(x);
    previous.narrow(1, 1, kSeqLen - 1).copy_(x.narrow(1, 0, kSeqLen - 1));
    const auto project = [&](const char* mix, const char* weight) {
      return at::linear(x * p[mix] + previous * (1 - p[mix]), p[weight]);
    };
    const at::Tensor k = project("time_mix_k", "key.weight"),
                     v = project("time_mix_v", "value.weight"),
                     r = project("time_mix_r", "receptance.weight"), w = -p["time_decay"].exp();
    std::vector<at::Tensor> outs;
    for (int64_t t = 0; t < kSeqLen; ++t) {
      at::Tensor weight = (p["time_first"] + k.select(1, t)).exp();
      at::Tensor numerator = weight * v.select(1, t), denominator = weight;
      for (int64_t i = 0; i < t; ++i) {
        weight = (w * static_cast<double>(t - 1 - i) + k.select(1, i)).exp();
        numerator = numerator + weight * v.select(1, i), denominator = denominator + weight;
      }
      outs.push_back(numerator / denominator);
    }
    return at::linear(at::sigmoid(r) * at::stack(outs, 1), p["output.weight"]);
  });
}

// With a gate of 1/2 and an output matrix of 1, twice the output is the average, rounded to bf16 on
// request.
TEST(Rwkv4Test, RoundsTheAverageToBf16WhereAsked) {
  constexpr int64_t kDim = 6;
  const at::Tensor x = Normal({2, 9, kDim}, 1, at::kFloat);
  std::vector<at::Tensor> averages;
  for (const char* dtype : {"fp32", "bf16"}) {
    Layer layer(kDim, 0, {{"wkv_dtype", std::string(dtype)}});
    layer.Bind("receptance.weight", at::zeros_like(layer["receptance.weight"]));
    layer.Bind("output.weight", at::eye(kDim, at::kDouble));
    for (const dist::ParamSpec& spec : layer.parameters().specs())
      layer.Bind(spec.name, layer[spec.name].to(at::kFloat));
    averages.push_back(2 * layer.Run(x));
  }
  EXPECT_FALSE(averages[0].equal(averages[1]));
  EXPECT_TRUE(averages[0].to(at::kBFloat16).to(at::kFloat).equal(averages[1]));
}

}  // namespace
}  // namespace halflife::model
