// Linear attention equals its quadratic form in LibTorch calls.
#include <ATen/TensorOperators.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/linear.h>

#include <cmath>

#include "model/mixers/built_mixer.h"
#include "ops/random_tensors.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::BitEqual;
using test::BuiltMixer;
using test::Close;
using test::Normal;

constexpr int64_t kDim = 16, kHeads = 2;

at::Tensor HeadsOf(const BuiltMixer& mixer, const at::Tensor& x, const char* name) {
  return at::linear(x, mixer[name]).unflatten(-1, {kHeads, -1});
}
// [B, T, H, .] -> [B, H, T, S], without later tokens.
at::Tensor Scores(const at::Tensor& q, const at::Tensor& k) {
  return at::einsum("bthd,bshd->bhts", {q, k}).tril();
}
at::Tensor Weighed(const at::Tensor& weights, const at::Tensor& v) {
  return at::einsum("bhts,bshd->bthd", {weights, v});
}

// The paper's form: elu + 1, divided by the sum of the weights.
TEST(LinearAttention, IsTheQuadraticForm) {
  const BuiltMixer mixer(MixerConfig("linear_attention", {{"num_heads", kHeads}}), kDim);
  const at::Tensor x = Normal({2, 150, kDim}, 1);
  const auto map = [](const at::Tensor& y) { return y.clamp_max(0).exp() + y.clamp_min(0); };
  const at::Tensor scores =
      Scores(map(HeadsOf(mixer, x, "q_proj.weight")), map(HeadsOf(mixer, x, "k_proj.weight")));
  const at::Tensor weights = scores / scores.sum(-1, /*keepdim=*/true);
  const at::Tensor o = Weighed(weights, HeadsOf(mixer, x, "v_proj.weight"));
  // The denominator's eps is 1e-10, the sums are above 1e-2.
  EXPECT_TRUE(Close(mixer.Run(x), at::linear(o.flatten(2), mixer["o_proj.weight"]), 1e-7));
}

// fla's defaults: product features, no divisor, RMSNorm over each head.
TEST(LinearAttention, IsFlasLayer) {
  const BuiltMixer mixer(MixerConfig("linear_attention", {{"num_heads", kHeads},
                                                          {"feature_map", "elementwise_product"},
                                                          {"normalise", false},
                                                          {"output_norm", true}}),
                         kDim);
  const at::Tensor x = Normal({2, 70, kDim}, 2);
  const auto map = [&](const at::Tensor& y, const std::string& name) {
    const auto layer = [&](const std::string& which) {
      return at::linear(y, mixer[name + which + ".weight"], mixer[name + which + ".bias"]);
    };
    return layer(".layer1") * layer(".layer2");
  };
  const at::Tensor q = map(HeadsOf(mixer, x, "q_proj.weight"), "feature_map_q"),
                   k = map(HeadsOf(mixer, x, "k_proj.weight"), "feature_map_k");
  const at::Tensor scores = Scores(q, k) / std::sqrt(8.0);
  const at::Tensor o = Weighed(scores, HeadsOf(mixer, x, "v_proj.weight"));
  const at::Tensor normed =
      o / (o.square().mean(-1, /*keepdim=*/true) + 1e-6).sqrt() * mixer["norm.weight"];
  EXPECT_TRUE(Close(mixer.Run(x), at::linear(normed.flatten(2), mixer["o_proj.weight"]), 1e-11));
}

// norm_q and norm_k each divide the features of their own side by their sum.
TEST(LinearAttention, DividesTheFeaturesOfEitherSide) {
  const at::Tensor x = Normal({2, 40, kDim}, 3);
  for (const bool of_q : {false, true}) {
    for (const bool of_k : {false, true}) {
      const BuiltMixer mixer(
          MixerConfig(
              "linear_attention",
              {{"num_heads", kHeads}, {"norm_q", of_q}, {"norm_k", of_k}, {"normalise", false}}),
          kDim);
      const auto map = [](const at::Tensor& y, bool divided) {
        const at::Tensor feature = y.clamp_max(0).exp() + y.clamp_min(0);
        return divided ? feature / (feature.sum(-1, /*keepdim=*/true) + 1e-4) : feature;
      };
      const at::Tensor q = map(HeadsOf(mixer, x, "q_proj.weight"), of_q),
                       k = map(HeadsOf(mixer, x, "k_proj.weight"), of_k);
      const at::Tensor scores = Scores(q, k) / std::sqrt(8.0);
      const at::Tensor o = Weighed(scores, HeadsOf(mixer, x, "v_proj.weight"));
      EXPECT_TRUE(Close(mixer.Run(x), at::linear(o.flatten(2), mixer["o_proj.weight"]), 1e-11))
          << "norm_q " << of_q << ", norm_k " << of_k;
    }
  }
}

TEST(LinearAttention, TiedMapsAreOne) {
  const auto count = [](bool tied) {
    return BuiltMixer(MixerConfig("linear_attention", {{"num_heads", kHeads},
                                                       {"feature_map", "t2r"},
                                                       {"tie_feature_map_qk", tied}}),
                      kDim)
        .parameters()
        .num_elements();
  };
  EXPECT_EQ(count(false) - count(true), 8 * 8);
}

// Only learned maps are tied. For other maps the option changes nothing.
TEST(LinearAttention, EitherSideIsDividedWhereverMapsAreTied) {
  const at::Tensor x = Normal({2, 40, kDim}, 5);
  for (const bool of_q : {false, true}) {
    const auto run = [&](bool tied) {
      return BuiltMixer(MixerConfig("linear_attention", {{"num_heads", kHeads},
                                                         {"normalise", false},
                                                         {"norm_q", of_q},
                                                         {"norm_k", !of_q},
                                                         {"tie_feature_map_qk", tied}}),
                        kDim)
          .Run(x);
    };
    EXPECT_TRUE(BitEqual(run(true), run(false))) << of_q;
  }
}

TEST(LinearAttention, SaysWhatDoesNotFit) {
  MixerConfig config("linear_attention", {{"feature_map", "exp"}, {"normalise", false}});
  EXPECT_THAT(Join(config.Resolve({.model_dim = 16, .num_layers = 1}), "\n"),
              testing::HasSubstr("feature_map exp without normalise overflows"));
  MixerConfig unknown("linear_attention", {{"feature_map", "elu2"}});
  EXPECT_THAT(Join(unknown.Resolve({.model_dim = 16, .num_layers = 1}), "\n"),
              testing::HasSubstr("known: elu, exp, relu, identity, elementwise_product, hedgehog"));
  // A model with this option is refused before it runs.
  const MixerConfig wide("linear_attention", {{"num_heads", 1}, {"feature_map", "dpfp"}});
  EXPECT_HL_ERROR(BuiltMixer(wide, 64), ExitCode::kUsage, "a head has 512 features",
                  "at most 256 and 512", "more heads");
}

}  // namespace
}  // namespace halflife::model
