// gated_conv equals its formula.
#include <ATen/ops/silu.h>

#include "model/mixers/built_mixer.h"
#include "model/mixers/direct_convolution.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;

TEST(GatedConvTest, IsItsFormula) {
  constexpr int64_t kDim = 6, kWidth = 12;
  BuiltMixer built(MixerConfig("gated_conv"), kDim);
  built.FillZeros();
  const at::Tensor x = Normal({2, 9, kDim}, 1);
  const at::Tensor both = x.matmul(built["in_proj.weight"].t()) + built["in_proj.bias"];
  const at::Tensor u = both.narrow(2, 0, kWidth), gate = both.narrow(2, kWidth, kWidth);
  const at::Tensor product = at::silu(test::ShortSum(u, built["conv.weight"])) * gate;
  const at::Tensor want = product.matmul(built["o_proj.weight"].t()) + built["o_proj.bias"];
  EXPECT_TRUE(Close(built.Run(x), want, 1e-13));
}

// 4D -> 2D each for u and the gate, with bias; a convolution without bias; 2D -> D with bias.
TEST(GatedConvTest, CountsItsParameters) {
  constexpr int64_t kDim = 768;
  ParameterSet parameters;
  MakeMixer(MixerConfig("gated_conv"),
            {.sizes = {.model_dim = kDim, .num_layers = 1}, .parameters = &parameters});
  EXPECT_EQ(parameters.num_elements(), 6 * kDim * kDim + 5 * kDim + 2 * kDim * 3);
}

TEST(GatedConvTest, AnOddWidthIsRefused) {
  MixerConfig config("gated_conv", {{"expand", 3}});
  const std::vector<std::string> problems = config.Resolve({.model_dim = 5, .num_layers = 1});
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("expand 3 of model_dim 5 must be an even"), std::string::npos)
      << problems[0];
}

}  // namespace
}  // namespace halflife::model
