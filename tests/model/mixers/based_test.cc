// Based equals its quadratic form in LibTorch calls, and has the paper's sizes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/einsum.h>
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

// Covers both forms of the kernel: 40 tokens use the pairwise form, 600 the chunked form. With 3
// heads of 16 channels, one channel is unused.
TEST(Based, IsTheTaylorPolynomial) {
  for (const int64_t seq_len : {40, 600})
    for (const double eps : {1e-12, 0.25}) {
      const BuiltMixer mixer(
          MixerConfig("based", {{"num_heads", 3}, {"feature_dim", 8}, {"eps", eps}}), 16);
      const at::Tensor x = Normal({2, seq_len, 16}, 1);
      const auto heads = [&](const char* name) {
        return at::linear(x, mixer[name]).unflatten(-1, {3, -1});
      };
      const at::Tensor s =
          at::einsum("bthd,bshd->bhts", {heads("q_proj.weight"), heads("k_proj.weight")}) /
          std::sqrt(8.0);
      const at::Tensor kappa = (1 + s + s.square() / 2).tril();
      const at::Tensor weights = kappa / (kappa.sum(-1, /*keepdim=*/true) + eps);
      const at::Tensor o = at::einsum("bhts,bshd->bthd", {weights, heads("v_proj.weight")});
      EXPECT_TRUE(Close(mixer.Run(x), at::linear(o.flatten(2), mixer["o_proj.weight"]), 1e-11));
    }
}

struct Size {
  int64_t dim, state;
};

// 12 heads of 16 channels have 384 D + 24 D floor(D / 12) parameters. The state has 153 packed
// features for each of floor(D / 12) values and for the normalizer.
TEST(Based, HasThePapersSizes) {
  for (const Size& size : {Size{64, 11016}, {128, 20196}, {256, 40392}, {512, 78948}}) {
    const BuiltMixer mixer(MixerConfig("based"), size.dim);
    EXPECT_EQ(mixer.parameters().num_elements(), 384 * size.dim + 24 * size.dim * (size.dim / 12));
    EXPECT_EQ(EmptyState(mixer->traits(), 1, at::kCPU, at::kFloat).bytes(), 4 * size.state);
  }
}

TEST(Based, SaysWhatDoesNotFit) {
  const auto problems = [](const std::vector<Assignment>& options, int64_t model_dim) {
    MixerConfig config("based", options);
    return Join(config.Resolve({.model_dim = model_dim, .num_layers = 1}), "\n");
  };
  EXPECT_EQ(problems({}, 64), "");
  EXPECT_THAT(problems({{"num_heads", 17}}, 16),
              testing::HasSubstr("num_heads 17 above model_dim 16. Use at most 16."));
  EXPECT_THAT(problems({{"num_heads", 1}}, 512),
              testing::HasSubstr("values of 512 channels per head; at most 256 are supported. "
                                 "Use at least 2 heads."));
  EXPECT_THAT(problems({{"eps", 0.0}}, 64), testing::HasSubstr("eps is 0"));
  EXPECT_THAT(problems({{"feature_dim", 65}}, 64), testing::HasSubstr("64"));
}

}  // namespace
}  // namespace halflife::model
