// Multi-head latent attention beyond the conformance suite: its definition, and the size of its
// state.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "model/mixers/built_mixer.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kDim = 16, kSeqLen = 9;
constexpr int64_t kHeads = 3, kRank = 12, kNope = 6, kRope = 4, kValue = 5;

MixerConfig Config(std::vector<Assignment> more) {
  more.insert(more.begin(), {{"num_heads", kHeads},
                             {"kv_lora_rank", kRank},
                             {"qk_nope_head_dim", kNope},
                             {"qk_rope_head_dim", kRope},
                             {"v_head_dim", kValue}});
  return MixerConfig("mla", more);
}

at::Tensor Normed(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + 1e-6) * weight;
}

// Rotates channels j and j + r/2 of x [B, T, heads, r] by t theta^(-2j/r).
at::Tensor Rotated(const at::Tensor& x, double theta) {
  const at::Tensor rates =
      at::arange(kRope / 2, at::kDouble).mul(-2.0 / kRope * std::log(theta)).exp();
  const at::Tensor angles = (at::arange(x.size(1), at::kDouble).unsqueeze(1) * rates).unsqueeze(1);
  const at::Tensor a = x.narrow(-1, 0, kRope / 2), b = x.narrow(-1, kRope / 2, kRope / 2);
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

// Computes the definition at the top of mla.cc with a table of all scores.
at::Tensor Defined(const BuiltMixer& mla, const at::Tensor& x, double theta) {
  const at::Tensor latents =
      at::linear(x, mla["kv_a_proj_with_mqa.weight"], mla["kv_a_proj_with_mqa.bias"]);
  at::Tensor shared = latents.narrow(-1, kRank, kRope).unsqueeze(2);
  at::Tensor q = at::linear(Normed(at::linear(x, mla["q_a_proj.weight"], mla["q_a_proj.bias"]),
                                   mla["q_a_layernorm.weight"]),
                            mla["q_b_proj.weight"])
                     .unflatten(-1, {kHeads, kNope + kRope});
  at::Tensor rotated = q.narrow(-1, kNope, kRope);
  if (theta > 0) shared = Rotated(shared, theta), rotated = Rotated(rotated, theta);
  const at::Tensor kv =
      at::linear(Normed(latents.narrow(-1, 0, kRank), mla["kv_a_layernorm.weight"]),
                 mla["kv_b_proj.weight"])
          .unflatten(-1, {kHeads, kNope + kValue});
  const at::Tensor scores =
      (at::einsum("bthn,bshn->bhts", {q.narrow(-1, 0, kNope), kv.narrow(-1, 0, kNope)}) +
       at::einsum("bthr,bsr->bhts", {rotated, shared.squeeze(2)})) /
      std::sqrt(static_cast<double>(kNope + kRope));
  const at::Tensor later = at::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
  const at::Tensor weights =
      scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1);
  const at::Tensor o = at::einsum("bhts,bshv->bthv", {weights, kv.narrow(-1, kNope, kValue)});
  return at::linear(o.flatten(2), mla["o_proj.weight"], mla["o_proj.bias"]);
}

TEST(MlaTest, IsItsDefinition) {
  const at::Tensor x = Normal({2, kSeqLen, kDim}, 1);
  for (const double theta : {0.0, 50.0}) {
    BuiltMixer mla(Config({{"q_lora_rank", 10}, {"bias", true}, {"rope_theta", theta}}), kDim);
    mla.FillZeros();
    for (const char* norm : {"q_a_layernorm.weight", "kv_a_layernorm.weight"})
      mla.Set(norm, Normal(mla[norm].sizes().vec(), 3) + 1);
    EXPECT_TRUE(Close(mla.Run(x), Defined(mla, x, theta), 1e-12)) << theta;
  }
}

// The state holds one latent per token, whatever the number of heads.
TEST(MlaTest, KeepsTheLatents) {
  const BuiltMixer mla(Config({}), kDim);
  const MixerTraits traits = mla->traits();
  ASSERT_EQ(traits.state.size(), 1u);
  EXPECT_THAT(traits.state[0].shape, ElementsAre(StateTensor::kGrows, kRank + kRope));
  const auto slice = SequenceSlice::Contiguous(2, kSeqLen, 0, at::kCPU);
  const MixerOutput out =
      mla->Forward({.x = Normal({2, kSeqLen, kDim}, 1), .slice = slice, .want_state = true});
  EXPECT_THAT(out.state.tensors[0].sizes().vec(), ElementsAre(2, kSeqLen, kRank + kRope));
}

TEST(MlaTest, RejectsOptionsByName) {
  const auto problems = [](std::vector<Assignment> options) {
    std::string lines;
    for (const std::string& line : Config(std::move(options)).Resolve({kDim, 1})) lines += line;
    return lines;
  };
  EXPECT_THAT(problems({{"rope_theta", 0.5}}),
              HasSubstr("option rope_theta is 0.5. Use a number above 1, or 0 for no rotation."));
  EXPECT_THAT(problems({{"qk_rope_head_dim", 3}}),
              HasSubstr("qk_rope_head_dim is 3, but a rotation pairs channels. Use an even number, "
                        "or rope_theta 0."));
  EXPECT_THAT(problems({{"num_heads", 1 << 24}}), HasSubstr("Use heads of at most 16777216"));
  EXPECT_EQ(problems({{"qk_rope_head_dim", 3}, {"rope_theta", 0.0}}), "");
}

}  // namespace
}  // namespace halflife::model
