// Lightning attention: golden decay rates, and the formula of a layer.
#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "model/mixers/built_mixer.h"
#include "model/mixers/linear/log_decay.h"
#include "ops/golden_draws.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::Normal;

at::Tensor Rates(const std::vector<double>& log_decays) {
  return -test::ToTensor(log_decays, {static_cast<int64_t>(log_decays.size())});
}

TEST(LightningTest, GoldenRates) {
  test::ExpectGolden(Rates(MiniMaxLogDecays(4, {.index = 0, .count = 8})),
                     {0.250002500, 0.062500625, 0.015625156, 0.003906289});
  EXPECT_NEAR(MiniMaxLogDecays(4, {.index = 3, .count = 8})[0], -0.142859796, 1e-9);
  EXPECT_NEAR(MiniMaxLogDecays(4, {.index = 7, .count = 8})[0], -0.000002857, 1e-9);
  test::ExpectGolden(Rates(LinearLogDecays(4, {.index = 3, .count = 8})), {0, 1.25, 2.5, 3.75});
}

// Computes one row x [T, D], token by token.
at::Tensor Formula(const at::Tensor& x, const test::BuiltMixer& p, const at::Tensor& rates,
                   int64_t head_dim) {
  const int64_t heads = rates.size(0);
  const auto project = [&](const char* name) {
    return at::silu(at::linear(x, p[name])).view({-1, heads, head_dim});
  };
  const at::Tensor q = project("q_proj.weight"), k = project("k_proj.weight"),
                   v = project("v_proj.weight"), decay = at::exp(-rates).view({heads, 1, 1});
  at::Tensor state = at::zeros({heads, head_dim, head_dim}, x.options());
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    state = decay * state + k[t].unsqueeze(2) * v[t].unsqueeze(1);
    rows.push_back(at::matmul(q[t].unsqueeze(1), state).flatten());
  }
  const at::Tensor o = at::stack(rows);
  const at::Tensor normed = o / (o.square().mean(-1, true) + 1e-6).sqrt() * p["g_norm.weight"];
  return at::linear(at::sigmoid(at::linear(x, p["g_proj.weight"])) * normed, p["o_proj.weight"]);
}

TEST(LightningTest, IsTheRecurrence) {
  constexpr int64_t kDim = 10, kHeads = 3, kWidth = 4, kSeqLen = 70;
  for (const char* decay : {"minimax", "linear"}) {
    SCOPED_TRACE(decay);
    test::BuiltMixer built(
        MixerConfig("lightning",
                    {{"num_heads", kHeads}, {"head_dim", kWidth}, {"decay", std::string(decay)}}),
        kDim, at::kDouble, 0.3, {.layer = 1, .num_layers = 4});
    built.Set("g_norm.weight", Normal({kHeads * kWidth}, 5));
    const LayerNumber layer = {.index = 1, .count = 4};
    // The mixer keeps constant decays in fp32.
    const at::Tensor rates = Rates(std::string(decay) == "minimax" ? MiniMaxLogDecays(kHeads, layer)
                                                                   : LinearLogDecays(kHeads, layer))
                                 .to(at::kFloat)
                                 .to(at::kDouble);
    EXPECT_EQ(built.parameters().size(), 6);
    built.ExpectFormula({1, kSeqLen, kDim}, {1e-11, 1e-10}, [&](const at::Tensor& x) {
      return Formula(x[0], built, rates, kWidth).unsqueeze(0);
    });
  }
}

TEST(LightningTest, NamesTheFix) {
  MixerConfig config("lightning", {{"num_heads", 5}});
  EXPECT_THAT(config.Resolve({.model_dim = 48, .num_layers = 2}),
              testing::ElementsAre("mixer lightning: num_heads 5 does not divide model_dim 48. Use "
                                   "a divisor of 48, or set head_dim."));
}

}  // namespace
}  // namespace halflife::model
