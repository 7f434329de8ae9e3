// LEAP equals its published formulas in parallel form, decoding and bf16. Test numbers are those of
// LEAP's required properties.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <set>

#include "model/mixers/focus/focus.h"
#include "model/mixers/focus/support.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::Close;
using test::FocusMixer;
using test::Heads;
using test::Named;
using test::Normal;
using test::Pooled;
using test::Projected;
using test::Standardised;

constexpr int64_t kDim = 16, kHeads = 2, kHeadDim = 8;
const std::vector<std::string> kPresets = {"leap_v011", "leap_v012", "leap_v101", "leap_latest"};

MixerConfig Leap(const std::string& preset, int64_t window) {
  return MixerConfig(
      "leap", {{"preset", preset}, {"num_heads", kHeads}, {"windows", "same"}, {"window", window}});
}

// Computes the published formulas as in the authors' code.
at::Tensor Formula(const std::string& preset, int64_t window, const at::Tensor& x,
                   const Named& weights) {
  const auto project = [&](const char* name) {
    return Heads(Projected(x, weights.at(name)), kHeads);
  };
  if (preset == "leap_v011" || preset == "leap_v012") {
    const bool first = preset == "leap_v011";
    const double eps = first ? 0 : 1e-5;
    const at::Tensor q = project(first ? "gate.weight" : "Wq.weight");
    const at::Tensor f = Standardised(project(first ? "Wq.weight" : "Wf1.weight"), eps);
    const at::Tensor k = Standardised(project(first ? "Wk.weight" : "Wf2.weight"), eps);
    const at::Tensor weight = ((f * k).sum(-1) / kHeadDim * 5).exp();
    const at::Tensor pooled = Pooled(weight, project("Wv.weight"), window, 0);
    const at::Tensor gate = first ? q : (q * pooled).sum(-1, true) / std::sqrt(double{kHeadDim});
    return (at::sigmoid(gate) * pooled).flatten(2);
  }
  const bool norm = preset == "leap_v101";
  std::vector<at::Tensor> parts;  // q, f, k, v
  for (const at::Tensor& part : Projected(x, weights.at("projections.weight")).chunk(4, -1))
    parts.push_back(norm ? Standardised(Heads(part, kHeads), 1e-5) : Heads(part, kHeads));
  const double scale = norm ? 10.0 / kHeadDim : 1 / std::sqrt(double{kHeadDim});
  const at::Tensor l = (parts[1] * parts[2]).sum(-1) * scale;
  const at::Tensor weight = norm ? l.exp() : at::where(l > 0, l + 1, l.exp());
  const at::Tensor keys = Pooled(weight, parts[2], window, 1e-5);
  const at::Tensor values = Pooled(weight, parts[3], window, 1e-5);
  return (at::sigmoid((parts[0] * keys).sum(-1, true) * scale) * values).flatten(2);
}

// Number 13.
TEST(LeapTest, IsThePublishedFormula) {
  for (const std::string& preset : kPresets)
    for (const int64_t window : {0, 1, 5, 20}) {
      SCOPED_TRACE(preset + ", window " + std::to_string(window));
      test::ExpectFormula(Leap(preset, window), kDim, 50,
                          [&](const at::Tensor& x, const Named& weights) {
                            return Formula(preset, window, x, weights);
                          });
    }
}

// Number 11, with the windows that each preset assigns to 6 layers, up to 64.
TEST(LeapTest, StepsAreTheWhole) {
  for (const std::string& preset : kPresets) {
    SCOPED_TRACE(preset);
    test::ExpectStepsAreTheWhole(MixerConfig("leap", {{"preset", preset}, {"num_heads", kHeads}}),
                                 {3, 15, 64, 100});
  }
}

// Number 12: a token reaches the sum of window - 1 over the layers.
TEST(LeapTest, ReachesItsWindows) {
  for (const std::string& preset : kPresets) {
    SCOPED_TRACE(preset);
    test::ExpectReach(Leap(preset, 4), 2 * 3);
  }
}

// The sites and rates of dropout. Replaces the tensor at each site by `value`.
struct Drops {
  std::set<uint32_t> sites;
  MixerCall::Drop Multiply(double factor, uint32_t only) {
    return [this, factor, only](uint32_t site, const at::Tensor& x, double rate) {
      sites.insert(site);
      EXPECT_EQ(rate, 0.25);
      EXPECT_EQ(x.dim(), 3);
      return site == only ? x * factor : x;
    };
  }
};
MixerConfig WithDropout(const std::string& preset, double rate) {
  MixerConfig config = Leap(preset, 0);
  config.Set("dropout", rate);
  return config;
}

// Number 13's dropout: the sites of each variant, which never include the keys. A dropped log
// weight is 0, so the token's weight is 1.
TEST(LeapTest, DropsWhereThePresetDoes) {
  const std::map<std::string, std::set<uint32_t>> want = {{"leap_v011", {4}},
                                                          {"leap_v012", {1, 4}},
                                                          {"leap_v101", {0, 1, 2, 3}},
                                                          {"leap_latest", {0, 1, 2, 3}}};
  const at::Tensor x = Normal({2, 12, kDim}, 1);
  for (const std::string& preset : kPresets) {
    Drops drops;
    FocusMixer(WithDropout(preset, 0.25), kDim, at::kDouble)(x, drops.Multiply(1, 0));
    EXPECT_EQ(drops.sites, want.at(preset)) << preset;
    Drops none;
    FocusMixer(WithDropout(preset, 0), kDim, at::kDouble)(x, none.Multiply(1, 0));
    EXPECT_TRUE(none.sites.empty());
  }
  const FocusMixer built(WithDropout("leap_v101", 0.25), kDim, at::kDouble);
  Drops drops;
  const at::Tensor got = built(x, drops.Multiply(0, /*only=*/3));
  const std::vector<at::Tensor> parts =
      Projected(x, built.named.at("projections.weight")).chunk(4, -1);
  const auto head = [&](int i) { return Standardised(Heads(parts[i], kHeads), 1e-5); };
  const at::Tensor ones = at::ones({2, 12, kHeads}, at::kDouble);
  const at::Tensor gate =
      (head(0) * Pooled(ones, head(2), 0, 1e-5)).sum(-1, true) * (10.0 / kHeadDim);
  EXPECT_TRUE(Close(got, (at::sigmoid(gate) * Pooled(ones, head(3), 0, 1e-5)).flatten(2), 1e-12));
}

// Returns the log weights of the last tokens, which are part of a window's state.
at::Tensor LogWeights(const FocusMixer& built, const at::Tensor& x) {
  const auto slice = SequenceSlice::Contiguous(x.size(0), x.size(1), 0, at::kCPU);
  return built.built->Forward({.x = x, .slice = slice, .want_state = true}).state.tensors[1];
}

// Number 14.
TEST(LeapTest, LogWeightsAreBounded) {
  for (const auto& [preset, factor] :
       std::map<std::string, double>{{"leap_v011", 5}, {"leap_v012", 5}, {"leap_v101", 10}}) {
    const FocusMixer built(Leap(preset, 60), kDim, at::kDouble);
    const at::Tensor l = LogWeights(built, Normal({4, 59, kDim}, 2) * 100);
    EXPECT_LE(l.abs().max().item<double>(), factor * (kHeadDim - 1) / kHeadDim + 1e-12) << preset;
    EXPECT_GT(l.abs().max().item<double>(), factor / 2) << preset;
  }
}
TEST(LeapTest, ConstantHeadsAreFinite) {
  const at::Tensor x = at::zeros({1, 6, kDim}, at::kDouble).requires_grad_();
  for (const std::string& preset : kPresets) {
    const at::Tensor y = FocusMixer(Leap(preset, 3), kDim, at::kDouble)(x);
    EXPECT_TRUE(y.isfinite().all().item<bool>()) << preset;
    const at::Tensor dx = torch::autograd::grad({y.sum()}, {x})[0];
    EXPECT_TRUE(dx.isfinite().all().item<bool>()) << preset;
  }
}

// Number 17: with one channel per head, l = +-x^2. Tests the weight elu(l) + 1 for l from -15 to
// 50.
TEST(LeapTest, LogOfEluPlusOne) {
  for (const double sign : {1.0, -1.0}) {
    FocusMixer built(
        MixerConfig(
            "leap",
            {{"preset", "leap_latest"}, {"num_heads", 1}, {"windows", "same"}, {"window", 2}}),
        1, at::kDouble);
    const at::Tensor weight = built.named.begin()->second.detach();
    weight[0][0] = 1, weight[1][0] = sign, weight[2][0] = 1, weight[3][0] = 1;
    const double most = sign > 0 ? 50 : 15;
    for (double size = 0; size <= most; size += 0.25) {
      const double l = sign * size, want = l > 0 ? l + 1 : std::exp(l);
      const at::Tensor x = at::full({1, 1, 1}, std::sqrt(size), at::kDouble);
      const double got = std::exp(LogWeights(built, x).item<double>());
      EXPECT_NEAR(got, want, 1e-13 * want) << l;
    }
    // Continuous, with slope 1 on both sides of 0.
    for (const double size : {0.0, 1e-4}) {
      const at::Tensor x = at::full({1, 1, 1}, std::sqrt(size), at::kDouble);
      EXPECT_NEAR(std::exp(LogWeights(built, x).item<double>()), 1 + sign * size, size * size);
    }
  }
}

// Number 15: the authors' windows. 0: all tokens.
TEST(LeapTest, AutomaticWindows) {
  using Windows = std::vector<int64_t>;
  const std::map<std::string, std::map<int64_t, Windows>> want = {
      {"doubling",
       {{1, {0}},
        {2, {4, 0}},
        {4, {4, 8, 16, 0}},
        {5, {4, 8, 16, 32, 0}},
        {6, {4, 8, 16, 32, 64, 0}},
        {9, {4, 8, 16, 32, 64, 128, 256, 512, 0}}}},
      {"doubling_between",
       {{1, {0}},
        {2, {0, 0}},
        {4, {0, 4, 8, 0}},
        {5, {0, 4, 8, 16, 0}},
        {6, {0, 4, 8, 16, 32, 0}},
        {9, {0, 4, 8, 16, 32, 64, 128, 256, 0}}}},
      {"cycle",
       {{1, {0}},
        {2, {0, 4}},
        {4, {0, 4, 8, 16}},
        {5, {0, 4, 8, 16, 0}},
        {6, {0, 4, 8, 16, 0, 4}},
        {9, {0, 4, 8, 16, 0, 4, 8, 16, 0}}}}};
  for (const auto& [rule, of_lengths] : want)
    for (const auto& [num_layers, windows] : of_lengths)
      EXPECT_EQ(AutomaticWindows(rule, num_layers), windows) << rule << ", " << num_layers;
}
TEST(LeapTest, LayersTakeTheWindowsOfTheirPreset) {
  const auto state = [](const char* preset, int64_t layer, int64_t max_length) {
    return FocusMixer(MixerConfig("leap", {{"preset", preset}, {"max_length", max_length}}), kDim,
                      at::kFloat, {.layer = layer, .num_layers = 9})
        .built->traits()
        .state[0];
  };
  EXPECT_EQ(state("leap_v011", 2, 1024).shape, (std::vector<int64_t>{15}));
  EXPECT_EQ(state("leap_v101", 2, 1024).shape, (std::vector<int64_t>{7}));
  EXPECT_EQ(state("leap_v101", 4, 1024).name, "log_scale");
  EXPECT_EQ(state("leap_v011", 7, 1024).shape, (std::vector<int64_t>{511}));
  EXPECT_EQ(state("leap_v011", 7, 512).name, "log_scale");  // As long as the longest row.
}

// Number 18: the shares reproduce the layer's output.
TEST(LeapTest, ExplainsItself) {
  for (const std::string& preset : kPresets)
    for (const int64_t window : {0, 6}) {
      SCOPED_TRACE(preset);
      test::ExpectSharesAgree(Leap(preset, window), kDim, 1);
    }
  const at::Tensor x = Normal({2, 25, kDim}, 3);
  const auto slice = SequenceSlice::Contiguous(2, 25, 0, at::kCPU);
  for (const std::string& preset : kPresets)
    for (const int64_t window : {0, 6}) {
      SCOPED_TRACE(preset + ", window " + std::to_string(window));
      const FocusMixer mixer(Leap(preset, window), kDim, at::kDouble);
      const Explanation pool =
          dynamic_cast<const Explained&>(mixer.built.mixer()).Explain({.x = x, .slice = slice})[0];
      const bool joined = mixer.named.contains("projections.weight");
      at::Tensor v = joined ? Projected(x, mixer.named.at("projections.weight")).chunk(4, -1)[3]
                            : Projected(x, mixer.named.at("Wv.weight"));
      v = preset == "leap_v101" ? Standardised(Heads(v, kHeads), 1e-5) : Heads(v, kHeads);
      const at::Tensor pooled = (pool.Dense().unsqueeze(4) * v.unsqueeze(1)).sum(2);
      EXPECT_TRUE(Close((pool.gate * pooled).flatten(2), mixer(x), 1e-12));
    }
}

TEST(LeapTest, RunsInBf16) {
  for (const std::string& preset : kPresets) {
    SCOPED_TRACE(preset);
    test::ExpectBf16IsClose(Leap(preset, 20));
  }
}

TEST(LeapTest, SaysWhatDoesNotFit) {
  const auto make = [](const std::vector<Assignment>& options) {
    FocusMixer(MixerConfig("leap", options), kDim, at::kFloat);
  };
  EXPECT_HL_ERROR(make({{"num_heads", 3}}), ExitCode::kUsage, "num_heads 3", "model_dim 16");
  EXPECT_HL_ERROR(make({{"num_heads", 16}}), ExitCode::kUsage, "width per head 1", "at most 8");
  EXPECT_HL_ERROR(make({{"window", 64}}), ExitCode::kUsage, "window is 64", "windows same");
  EXPECT_HL_ERROR(make({{"window", -1}}), ExitCode::kUsage, "window", "-1");
  EXPECT_HL_ERROR(make({{"preset", "leap_v2"}}), ExitCode::kUsage, "preset", "leap_v101");
  EXPECT_HL_ERROR(make({{"preset", "leap_latest"}, {"rescale", 10.0}}), ExitCode::kUsage,
                  "rescale is 10", "Use rescale 0.");
  EXPECT_HL_ERROR(make({{"dropout", 1.0}}), ExitCode::kUsage, "dropout is 1", "below 1");
}

// Number 15: parameters of the authors' models with D 128, 6 layers, 32100 tokens and 2048
// positions. In each layer, 0.1.1 also allocates a vector of D and a LayerNorm of a head's width
// that are never used. They are not parameters here, so only its published number includes them.
TEST(LeapTest, CountsThePublishedParameters) {
  constexpr int64_t kWidth = 128, kLayers = 6, kVocab = 32100, kPositions = 2048, kWidthOfHead = 32;
  const int64_t embeddings = (kVocab + kPositions) * kWidth, norm = 2 * kWidth;
  const auto own = [](const char* preset) {
    return FocusMixer(MixerConfig("leap", {{"preset", preset}}), kWidth, at::kFloat)
        .built.parameters()
        .num_elements();
  };
  const int64_t ffn = 8 * kWidth * kWidth, ffn_biases = 5 * kWidth;
  const int64_t unused = kWidth + 2 * kWidthOfHead;
  EXPECT_EQ(embeddings + kVocab + norm + kLayers * (own("leap_v011") + unused + ffn + 2 * norm),
            5587172);
  for (const char* preset : {"leap_v101", "leap_latest"})
    EXPECT_EQ(embeddings + norm + kLayers * (own(preset) + ffn + ffn_biases + 2 * norm), 5557760);
}

}  // namespace
}  // namespace halflife::model
