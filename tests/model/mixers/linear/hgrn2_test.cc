// HGRN2: the formula of a layer with its lower bounds, and the parameter that the
// layers of a model share.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "model/language_model.h"
#include "model/mixers/built_mixer.h"
#include "model/mixers/parallel.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::Close;
using test::Normal;

// Computes one row x [T, D], token by token.
at::Tensor Formula(const at::Tensor& x, const test::BuiltMixer& p, int64_t num_heads,
                   int64_t layer) {
  const int64_t seq_len = x.size(0), dim = x.size(1), width = dim / num_heads;
  const at::Tensor q = at::silu(at::linear(x, p["q_proj.weight"])),
                   f = at::linear(x, p["f_proj.weight"]), v = at::linear(x, p["i_proj.weight"]);
  at::Tensor alpha = at::sigmoid(f);
  if (layer > 0) {
    const at::Tensor bound =
        (at::softmax(p["lower_bounds"], 0).cumsum(0) - at::softmax(p["lower_bounds"], 0)[0])[layer];
    alpha = bound + (1 - bound) * alpha;
  }
  const auto heads = [&](const at::Tensor& y) { return y.view({num_heads, width}); };
  at::Tensor state = at::zeros({num_heads, width, width}, x.options());
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < seq_len; ++t) {
    const at::Tensor a = heads(alpha[t]).unsqueeze(2);
    state = a * state + (1 - a) * heads(v[t]).unsqueeze(1);
    const at::Tensor query = heads(q[t]).unsqueeze(1) / std::sqrt(static_cast<double>(width));
    rows.push_back(at::matmul(query, state).flatten());
  }
  const at::Tensor o = at::stack(rows);
  const at::Tensor normed =
      o / (o.square().mean(-1, true) + 1e-5).sqrt() * p["g_norm.weight"];  // over all heads
  return at::linear(normed, p["o_proj.weight"]);
}

TEST(Hgrn2Test, IsTheRecurrence) {
  constexpr int64_t kDim = 12, kHeads = 3, kSeqLen = 70;
  for (const int64_t layer : {0, 1, 3}) {
    SCOPED_TRACE(layer);
    test::BuiltMixer built(MixerConfig("hgrn2", {{"num_heads", kHeads}}), kDim, at::kDouble, 0.3,
                           {.layer = layer, .num_layers = 4});
    built.FillZeros();
    built.Set("g_norm.weight", Normal({kDim}, 5));
    EXPECT_EQ(built.parameters().size(), layer == 0 ? 5 : 6);  // layer 0 has no bounds
    built.ExpectFormula({2, kSeqLen, kDim}, {1e-12, 1e-11}, [&](const at::Tensor& x) {
      return at::stack({Formula(x[0], built, kHeads, layer), Formula(x[1], built, kHeads, layer)});
    });
  }
}

ModelConfig Model(int64_t num_layers) {
  return {.vocab_size = 11,
          .model_dim = 8,
          .num_layers = num_layers,
          .initializer_range = 0.3,
          .mixer = MixerConfig("hgrn2", {{"num_heads", 2}}),
          .channel_mixer = ChannelMixerConfig("swiglu", {{"width", 8}})};
}

// One tensor of all layers, which layer 1 declares and all later layers read too. Its gradient is
// that of the model, so every layer but the first contributes.
TEST(Hgrn2Test, LayersShareTheirLowerBounds) {
  LanguageModel model(Model(4));
  const auto& specs = model.parameters().specs();
  const auto bounds = std::ranges::find(specs, "lower_bounds", &dist::ParamSpec::name);
  ASSERT_NE(bounds, specs.end());
  const int index = static_cast<int>(bounds - specs.begin());
  EXPECT_EQ(bounds->shape, (std::vector<int64_t>{4, 8}));
  EXPECT_EQ(bounds->readers, 3);
  EXPECT_EQ(bounds->region, dist::Region::kFp32);
  EXPECT_FALSE(bounds->weight_decay);
  EXPECT_EQ(model.LayerOf(index), 1);

  for (int i = 0; i < model.parameters().size(); ++i) {
    at::Tensor value = at::zeros(specs[i].shape, at::kFloat);
    model.parameters().Initialise(i, 3, value.mutable_data_ptr<float>());
    model.parameters().Bind(i, value.to(at::kDouble));
  }
  const at::Tensor values = Normal({4, 8}, 9);
  const at::Tensor tokens = (test::Uniform({2, 12}, 4) * 11).to(at::kLong);
  const auto slice = SequenceSlice::Contiguous(2, 12, 0, at::kCPU);
  const auto loss = [&](const at::Tensor& of) {
    model.parameters().Bind(index, of);
    return model.Logits(model.Hidden(tokens, {.slice = &slice})).to(at::kDouble).square().sum();
  };
  const at::Tensor leaf = values.clone().requires_grad_();
  const at::Tensor got = torch::autograd::grad({loss(leaf)}, {leaf})[0];
  // The sum over layers of a softmax's gradient is 0, and no row is 0 by itself.
  EXPECT_TRUE(Close(got.sum(0), at::zeros({8}, at::kDouble), 1e-9));
  for (int64_t layer = 0; layer < 4; ++layer) EXPECT_GT(got[layer].abs().max().item<double>(), 0);
}

// A layer is recomputed as a whole, so it is one reader even if two of its parts read the bounds.
TEST(Hgrn2Test, TwoPartsOfALayerAreOneReader) {
  ModelConfig config = Model(3);
  config.mixer = ParallelMixer({ParallelPart(config.mixer), ParallelPart(config.mixer)});
  const LanguageModel model(config);
  const auto bounds =
      std::ranges::find(model.parameters().specs(), "lower_bounds", &dist::ParamSpec::name);
  EXPECT_EQ(bounds->readers, 2);
}

TEST(Hgrn2Test, AModelOfOneLayerHasNoBounds) {
  const LanguageModel model(Model(1));
  for (const dist::ParamSpec& spec : model.parameters().specs())
    EXPECT_NE(spec.name, "lower_bounds");
}

TEST(Hgrn2Test, NamesTheFix) {
  MixerConfig config("hgrn2", {{"num_heads", 5}});
  EXPECT_THAT(config.Resolve({.model_dim = 48, .num_layers = 2}),
              testing::ElementsAre("mixer hgrn2: num_heads 5 does not divide model_dim 48. Use a "
                                   "divisor of 48."));
}

}  // namespace
}  // namespace halflife::model
