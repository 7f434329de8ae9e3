// ReBased in the paper's form, in fla's form and with parts disabled equals quadratic forms in
// LibTorch calls.
#include <ATen/TensorOperators.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linear.h>

#include <cmath>

#include "model/mixers/built_mixer.h"
#include "ops/random_tensors.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;

constexpr int64_t kDim = 16, kHeads = 2, kFeatures = 8;

std::vector<Assignment> Small(std::vector<Assignment> options) {
  options.insert(options.end(), {{"num_heads", kHeads}, {"feature_dim", kFeatures}});
  return options;
}

// Sets gammas and betas to values other than 1 and 0.
void Stir(BuiltMixer& mixer) {
  uint64_t seed = 20;
  for (const dist::ParamSpec& spec : mixer.parameters().specs())
    if (spec.shape.size() == 1) mixer.Set(spec.name, 1 + 0.5 * Normal(spec.shape, ++seed));
}
bool Has(const BuiltMixer& mixer, const std::string& name) {
  for (const dist::ParamSpec& spec : mixer.parameters().specs())
    if (spec.name == name) return true;
  return false;
}

// Normalises groups of `width` channels by mean and std, then applies gamma and beta of `map` if
// they exist. [B, T, H d] -> [B, T, H, d].
at::Tensor NormAndMove(const BuiltMixer& mixer, const at::Tensor& x, int64_t width,
                       const std::string& map) {
  at::Tensor y = x;
  if (width > 0) {
    const at::Tensor parts = x.unflatten(-1, {-1, width});
    const at::Tensor centred = parts - parts.mean(-1, /*keepdim=*/true);
    y = (centred / (centred.square().mean(-1, /*keepdim=*/true) + 1e-5).sqrt()).flatten(-2);
  }
  const auto vector = [&](const char* field) {
    const at::Tensor& values = mixer[map + field];
    return values.size(0) == kFeatures ? values.repeat({kHeads}) : values;
  };
  if (Has(mixer, map + ".gamma")) y = y * vector(".gamma");
  if (Has(mixer, map + ".beta")) y = y + vector(".beta");
  return y.unflatten(-1, {kHeads, kFeatures});
}

// sum of kappa v / (sum of kappa + eps), then o_proj; kappa [B, H, T, T].
at::Tensor Attend(const BuiltMixer& mixer, const at::Tensor& x, const at::Tensor& kappa,
                  double eps) {
  const at::Tensor v = at::linear(x, mixer["v_proj.weight"]).unflatten(-1, {kHeads, -1});
  const at::Tensor seen = kappa.tril();
  const at::Tensor o =
      at::einsum("bhts,bshd->bthd", {seen / (seen.sum(-1, /*keepdim=*/true) + eps), v});
  return at::linear(o.flatten(2), mixer["o_proj.weight"]);
}
at::Tensor Square(const at::Tensor& q, const at::Tensor& k) {
  return at::einsum("bthd,bshd->bhts", {q, k}).square() / kFeatures;
}

// All eight combinations of gamma, beta and the norm. The last one is x^2 of the paper's ablation.
TEST(Rebased, IsTheSquareWithEachPartOnOrOff) {
  for (int parts = 0; parts < 8; ++parts) {
    const bool gamma = parts & 1, beta = parts & 2, norm = parts & 4;
    SCOPED_TRACE(testing::Message() << "gamma " << gamma << ", beta " << beta << ", norm " << norm);
    BuiltMixer mixer(
        MixerConfig("rebased",
                    Small({{"use_gamma", gamma}, {"use_beta", beta}, {"normalize", norm}})),
        kDim);
    Stir(mixer);
    EXPECT_EQ(Has(mixer, "q_feature_map.gamma"), gamma);
    EXPECT_EQ(Has(mixer, "k_feature_map.beta"), beta);
    for (const int64_t seq_len : {40, 300}) {
      const at::Tensor x = Normal({2, seq_len, kDim}, 1);
      const int64_t width = norm ? kHeads * kFeatures : 0;
      const auto map = [&](const char* projection, const char* name) {
        return NormAndMove(mixer, at::linear(x, mixer[projection]), width, name);
      };
      const at::Tensor kappa =
          Square(map("q_proj.weight", "q_feature_map"), map("k_proj.weight", "k_feature_map"));
      EXPECT_TRUE(Close(mixer.Run(x), Attend(mixer, x, kappa, 1e-12), 1e-9));
    }
  }
}

TEST(Rebased, IsFlasLayer) {
  BuiltMixer mixer(
      MixerConfig("rebased",
                  Small({{"norm_scope", "per_head"}, {"shared_affine", true}, {"eps", 1e-5}})),
      kDim);
  Stir(mixer);
  const at::Tensor x = Normal({2, 60, kDim}, 2);
  const auto map = [&](const char* projection) {
    return NormAndMove(mixer, at::linear(x, mixer[projection]), kFeatures, "feature_map");
  };
  EXPECT_TRUE(Close(mixer.Run(x),
                    Attend(mixer, x, Square(map("q_proj.weight"), map("k_proj.weight")), 1e-5),
                    1e-10));
  EXPECT_EQ(mixer["feature_map.gamma"].size(0), kFeatures);
}

// The other two combinations of norm_scope and shared_affine, in which gamma and the norm differ in
// width.
TEST(Rebased, NormAndAffineNeedNotBeOfOneWidth) {
  for (const bool shared : {false, true}) {
    BuiltMixer mixer(MixerConfig("rebased", Small({{"norm_scope", shared ? "joint" : "per_head"},
                                                   {"shared_affine", shared}})),
                     kDim);
    Stir(mixer);
    const at::Tensor x = Normal({2, 30, kDim}, 3);
    const int64_t width = shared ? kHeads * kFeatures : kFeatures;
    const auto map = [&](const char* projection, const char* name) {
      return NormAndMove(mixer, at::linear(x, mixer[projection]), width,
                         shared ? "feature_map" : name);
    };
    const at::Tensor kappa =
        Square(map("q_proj.weight", "q_feature_map"), map("k_proj.weight", "k_feature_map"));
    EXPECT_TRUE(Close(mixer.Run(x), Attend(mixer, x, kappa, 1e-12), 1e-9));
  }
}

TEST(Rebased, ElementwiseSquaresEachChannel) {
  BuiltMixer mixer(MixerConfig("rebased", Small({{"kernel", "sq_elementwise"}, {"eps", 0.25}})),
                   kDim);
  Stir(mixer);
  const at::Tensor x = Normal({2, 70, kDim}, 4);
  const auto map = [&](const char* projection, const char* name) {
    return NormAndMove(mixer, at::linear(x, mixer[projection]), kHeads * kFeatures, name).square();
  };
  const at::Tensor kappa = at::einsum("bthd,bshd->bhts", {map("q_proj.weight", "q_feature_map"),
                                                          map("k_proj.weight", "k_feature_map")}) /
                           kFeatures;
  EXPECT_TRUE(Close(mixer.Run(x), Attend(mixer, x, kappa, 0.25), 1e-11));
}

// Property 11 of the kernels of the two papers: the squares of all 192 channels of a normalised q
// sum to 192 var / (var + 1e-5). With k = q, a single token has z = (q_h . q_h)^2 / 16 in each
// head, which an eps of 1 makes visible in o = v z / (z + 1).
TEST(Rebased, NormIsOverAllHeadsTogether) {
  constexpr int64_t kModel = 24;
  BuiltMixer mixer(MixerConfig("rebased", {{"eps", 1.0}}), kModel);
  mixer.Set("k_proj.weight", mixer["q_proj.weight"]);
  mixer.Set("o_proj.weight", at::eye(kModel, at::kDouble));
  const at::Tensor x = 0.01 * Normal({1, 1, kModel}, 5);  // var is at most about 1e-4.
  const at::Tensor v = at::linear(x, mixer["v_proj.weight"]);
  const at::Tensor share = (mixer.Run(x) / v).view({12, 2}).select(1, 0);  // z / (z + 1)
  const at::Tensor z = share / (1 - share);
  const double variance =
      at::linear(x, mixer["q_proj.weight"]).var(/*unbiased=*/false).item<double>();
  EXPECT_NEAR((z * 16).sqrt().sum().item<double>(), 192 * variance / (variance + 1e-5), 1e-8);
}

struct Size {
  int64_t dim, state;
};

// 768 parameters more than Based: gamma and beta of q and k, 192 each. 136 packed features.
TEST(Rebased, HasThePapersSizes) {
  for (const Size& size : {Size{64, 9792}, {128, 17952}, {256, 35904}, {512, 70176}}) {
    const BuiltMixer mixer(MixerConfig("rebased"), size.dim);
    EXPECT_EQ(mixer.parameters().num_elements(),
              BuiltMixer(MixerConfig("based"), size.dim).parameters().num_elements() + 768);
    EXPECT_EQ(EmptyState(mixer->traits(), 1, at::kCPU, at::kFloat).bytes(), 4 * size.state);
  }
}

TEST(Rebased, GammaAndBetaAreFp32AndDoNotDecay) {
  const BuiltMixer mixer(MixerConfig("rebased"), 64);
  int vectors = 0;
  for (const dist::ParamSpec& spec : mixer.parameters().specs()) {
    if (spec.shape.size() != 1) {
      EXPECT_TRUE(spec.weight_decay) << spec.name;
      continue;
    }
    ++vectors;
    EXPECT_FALSE(spec.weight_decay) << spec.name;
    EXPECT_EQ(spec.region, dist::Region::kFp32) << spec.name;
  }
  EXPECT_EQ(vectors, 4);
}

TEST(Rebased, SaysWhatDoesNotFit) {
  MixerConfig config("rebased", {{"norm_scope", "heads"}});
  EXPECT_THAT(Join(config.Resolve({.model_dim = 64, .num_layers = 1}), "\n"),
              testing::HasSubstr("known: joint, per_head"));
}

}  // namespace
}  // namespace halflife::model
