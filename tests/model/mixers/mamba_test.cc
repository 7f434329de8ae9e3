// Mamba: parameters, initial values of both presets, and the formula.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <vector>

#include "model/mixers/built_mixer.h"

namespace halflife::model {
namespace {

using test::Close;
using testing::ElementsAre;
using testing::HasSubstr;

// The first layer of two, with fp64 parameters.
struct Layer : test::BuiltMixer {
  explicit Layer(int64_t dim, const std::vector<Assignment>& options = {})
      : BuiltMixer(MixerConfig("mamba", options), dim, at::kDouble, /*std_dev=*/0.02,
                   {.num_layers = 2, .seed = 3}) {}
};

// Table 6 of ReBased (Aksenov et al., 2024): two layers with an RMSNorm each, 8192 tokens, a
// position table and a last norm of two vectors.
TEST(MambaTest, HasAsManyParametersAsPublished) {
  struct Cell {
    int64_t dim, positions, count;
  };
  for (const auto& [dim, positions, count] : {Cell{64, 1024, 655'360},
                                              {128, 1024, 1'413'120},
                                              {256, 1024, 3'235'840},
                                              {512, 512, 7'847'936}}) {
    const int64_t mixer = Layer(dim).parameters().num_elements(), inner = 2 * dim, rank = dim / 16;
    EXPECT_EQ(mixer, 4 * dim * dim + 5 * inner + inner * (rank + 32) + rank * inner + inner +
                         17 * inner + inner * dim);
    EXPECT_EQ((8192 + positions + 2) * dim + 2 * (mixer + dim), count) << dim;
  }
}

TEST(MambaTest, NamesItsParametersAsTransformers) {
  const Layer layer(20, {{"d_state", 5}});  // Rank 2, rounded up.
  std::map<std::string, std::vector<int64_t>> shapes;
  std::map<std::string, bool> decays;
  for (const dist::ParamSpec& spec : layer.parameters().specs()) {
    shapes[spec.name] = spec.shape;
    decays[spec.name] = spec.weight_decay;
  }
  const std::map<std::string, std::vector<int64_t>> want_shapes = {
      {"in_proj.weight", {80, 20}}, {"conv1d.weight", {40, 1, 4}},
      {"conv1d.bias", {40}},        {"x_proj.weight", {12, 40}},
      {"dt_proj.weight", {40, 2}},  {"dt_proj.bias", {40}},
      {"A_log", {40, 5}},           {"D", {40}},
      {"out_proj.weight", {20, 40}}};
  const std::map<std::string, bool> want_decays = {
      {"in_proj.weight", true}, {"conv1d.weight", false},
      {"conv1d.bias", false},   {"x_proj.weight", true},
      {"dt_proj.weight", true}, {"dt_proj.bias", false},
      {"A_log", false},         {"D", false},
      {"out_proj.weight", true}};
  EXPECT_EQ(shapes, want_shapes);
  EXPECT_EQ(decays, want_decays);
}

double StdDev(const at::Tensor& x) { return x.square().mean().sqrt().item<double>(); }

// Expects uniform values. The bounds hold exactly. The standard deviation of uniform draws is bound
// / sqrt(3), within 5 standard errors, bound / sqrt(3) sqrt(0.2 / n).
void ExpectUniform(const Layer& layer, const std::string& name, double bound) {
  const at::Tensor& x = layer[name];
  EXPECT_LE(x.abs().max().item<double>(), bound * (1 + 1e-6)) << name;
  const double std_dev = bound / std::sqrt(3);
  EXPECT_NEAR(StdDev(x), std_dev, 5 * std_dev * std::sqrt(0.2 / static_cast<double>(x.numel())))
      << name;
}

TEST(MambaTest, CanonicalStepsAreLogUniform) {
  const Layer layer(128);  // 256 inner channels, rank 8.
  const at::Tensor logs = at::softplus(layer["dt_proj.bias"]).log();
  const double low = std::log(0.001), high = std::log(0.1);
  EXPECT_GE(logs.min().item<double>(), low - 1e-4);
  EXPECT_LE(logs.max().item<double>(), high + 1e-4);
  const double std_dev = (high - low) / std::sqrt(12);
  EXPECT_NEAR(logs.mean().item<double>(), (low + high) / 2, 5 * std_dev / 16);
  EXPECT_NEAR(StdDev(logs - logs.mean()), std_dev, 5 * std_dev * std::sqrt(0.2 / 256));
  ExpectUniform(layer, "dt_proj.weight", 1 / std::sqrt(8));
  ExpectUniform(layer, "in_proj.weight", 1 / std::sqrt(128));
  ExpectUniform(layer, "x_proj.weight", 1.0 / 16);
  ExpectUniform(layer, "conv1d.weight", 0.5);
  ExpectUniform(layer, "conv1d.bias", 0.5);
  ExpectUniform(layer, "out_proj.weight", 1.0 / 16 / std::sqrt(2));
}

TEST(MambaTest, ForkStepsAreAllTheSame) {
  const Layer layer(128, {{"mamba_init", std::string("fork")}});
  const at::Tensor steps = at::softplus(layer["dt_proj.bias"]);
  EXPECT_TRUE(Close(steps, at::zeros_like(steps) + std::log(2.0), 1e-7));
  for (const char* name :
       {"in_proj.weight", "x_proj.weight", "dt_proj.weight", "out_proj.weight"}) {
    const at::Tensor& x = layer[name];
    EXPECT_NEAR(StdDev(x), 0.02, 5 * 0.02 / std::sqrt(2.0 * static_cast<double>(x.numel())))
        << name;
  }
  ExpectUniform(layer, "conv1d.weight", 0.5);
}

TEST(MambaTest, BothPresetsStartTheStatesAlike) {
  for (const char* preset : {"canonical", "fork"}) {
    const Layer layer(16, {{"mamba_init", std::string(preset)}});
    const at::Tensor& a_log = layer["A_log"];
    for (int64_t n = 0; n < 16; ++n)
      EXPECT_NEAR(a_log[7][n].item<double>(), std::log(n + 1.0), 1e-6) << preset;
    EXPECT_TRUE((layer["D"] == 1).all().item<bool>());
  }
}

// Outputs, and the gradients of the input and of every parameter.
TEST(MambaTest, IsTheRecurrence) {
  constexpr int64_t kSeqLen = 20, kDim = 6, kInner = 12, kStates = 3, kRank = 2;
  Layer p(kDim, {{"d_state", kStates}, {"dt_rank", kRank}});
  p.ExpectFormula({2, kSeqLen, kDim}, {1e-13, 1e-12}, [&](const at::Tensor& u) {
    const at::Tensor xz = at::linear(u, p["in_proj.weight"]);
    const at::Tensor before = xz.narrow(2, 0, kInner), z = xz.narrow(2, kInner, kInner);
    at::Tensor h = at::zeros({2, kInner, kStates}, at::kDouble);
    std::vector<at::Tensor> outs;
    for (int64_t t = 0; t < kSeqLen; ++t) {
      at::Tensor sum = p["conv1d.bias"];
      for (int64_t back = 0; back < 4 && back <= t; ++back)
        sum =
            sum + before.select(1, t - back) * p["conv1d.weight"].select(2, 3 - back).select(1, 0);
      const at::Tensor x = at::silu(sum), selected = at::linear(x, p["x_proj.weight"]);
      const at::Tensor step = at::softplus(
          at::linear(selected.narrow(1, 0, kRank), p["dt_proj.weight"]) + p["dt_proj.bias"]);
      const at::Tensor b = selected.narrow(1, kRank, kStates),
                       c = selected.narrow(1, kRank + kStates, kStates);
      h = (step.unsqueeze(2) * -p["A_log"].exp()).exp() * h +
          (step * x).unsqueeze(2) * b.unsqueeze(1);
      const at::Tensor y = (h * c.unsqueeze(1)).sum(2) + p["D"] * x;
      outs.push_back(at::linear(y * at::silu(z.select(1, t)), p["out_proj.weight"]));
    }
    return at::stack(outs, 1);
  });
}

TEST(MambaTest, NamesTheFix) {
  const auto problems = [](const std::vector<Assignment>& options) {
    return MixerConfig("mamba", options).Resolve({.model_dim = 1024, .num_layers = 2});
  };
  EXPECT_THAT(problems({{"d_state", 257}}), ElementsAre(HasSubstr("at most 256")));
  EXPECT_THAT(problems({{"d_conv", 0}}), ElementsAre(HasSubstr("at least 1")));
  EXPECT_THAT(problems({{"expand", int64_t{1} << 15}}),
              ElementsAre("mixer mamba: expand 32768 of model_dim 1024 is 33554432 channels. "
                          "Use an expand of at most 16384."));
  EXPECT_THAT(problems({{"mamba_init", std::string("zoology")}}),
              ElementsAre(HasSubstr("canonical")));
}

}  // namespace
}  // namespace halflife::model
