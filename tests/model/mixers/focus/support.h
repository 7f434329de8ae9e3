// Shared code of LEAP's and Fastformer's tests: a mixer with its own parameters, and the formulas
// of the papers' code, including differences of cumulative sums, to be run in fp64.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/language_model.h"
#include "model/mixers/built_mixer.h"
#include "model/mixers/focus/explanation.h"
#include "ops/random_tensors.h"

namespace halflife::model::test {

using halflife::test::Close;
using halflife::test::Normal;

using Named = std::map<std::string, at::Tensor>;

// All parameters, also vectors that start at zero, are normal with standard deviation 0.3. They are
// the same numbers in each dtype and require gradients.
struct FocusMixer {
  FocusMixer(const MixerConfig& config, int64_t dim, at::ScalarType dtype,
             const halflife::test::LayerPlace& place = {})
      : built(config, dim, dtype, 0.3, place) {
    for (const dist::ParamSpec& spec : built.parameters().specs()) {
      const auto seed = 50 + static_cast<uint64_t>(named.size());
      const at::Tensor value =
          (Normal(spec.shape, seed, at::kFloat) * 0.3).to(dtype).requires_grad_();
      named[spec.name] = value;
      built.Set(spec.name, value);
    }
  }
  at::Tensor operator()(const at::Tensor& x, const MixerCall::Drop& drop = {}) const {
    const auto slice = SequenceSlice::Contiguous(x.size(0), x.size(1), 0, at::kCPU);
    return built->Forward({.x = x, .slice = slice, .drop = drop}).y;
  }
  halflife::test::BuiltMixer built;
  Named named;
};

inline at::Tensor Projected(const at::Tensor& x, const at::Tensor& weight) {
  return at::linear(x, weight);
}
inline at::Tensor Heads(const at::Tensor& x, int64_t num_heads) {
  return x.unflatten(-1, {num_heads, -1});
}
inline at::Tensor Standardised(const at::Tensor& x, double eps) {
  return (x - x.mean(-1, true)) / (x.std(-1, /*unbiased=*/true, true) + eps);
}
inline at::Tensor WindowSums(const at::Tensor& x, int64_t window) {
  const at::Tensor sums = x.cumsum(1);
  const int64_t seq_len = x.size(1);
  if (window == 0 || window >= seq_len) return sums;
  return at::cat({sums.narrow(1, 0, window),
                  sums.narrow(1, window, seq_len - window) - sums.narrow(1, 0, seq_len - window)},
                 1);
}
// weight [B, T, H], u [B, T, H, P].
inline at::Tensor Pooled(const at::Tensor& weight, const at::Tensor& u, int64_t window,
                         double eps) {
  return WindowSums(weight.unsqueeze(3) * u, window) /
         (WindowSums(weight, window) + eps).unsqueeze(3);
}

// Number 13: compares outputs and all gradients of the mixer in fp32 with `formula` in fp64. The
// sums of a few hundred terms have different orders.
inline void ExpectFormula(
    const MixerConfig& config, int64_t dim, int64_t seq_len,
    const std::function<at::Tensor(const at::Tensor& x, const Named& weights)>& formula) {
  const auto run = [&](at::ScalarType dtype, const auto& forward) {
    FocusMixer built(config, dim, dtype);
    const at::Tensor x = Normal({2, seq_len, dim}, 7, at::kFloat).to(dtype).requires_grad_();
    const at::Tensor y = forward(built, x);
    std::vector<at::Tensor> leaves = {x};
    for (const auto& [name, value] : built.named) leaves.push_back(value);
    std::vector<at::Tensor> results = {y.detach()};
    for (const at::Tensor& grad :
         torch::autograd::grad({y}, leaves, {Normal(y.sizes().vec(), 8, at::kFloat).to(dtype)}))
      results.push_back(grad);
    return results;
  };
  const auto got =
      run(at::kFloat, [](const FocusMixer& built, const at::Tensor& x) { return built(x); });
  const auto want = run(at::kDouble, [&](const FocusMixer& built, const at::Tensor& x) {
    return formula(x, built.named);
  });
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(Close(got[i], want[i], 1e-5)) << (i == 0 ? "output" : "gradient ") << i;
}

// Expects that rows, columns, the whole matrix and the last row of the shares agree, also with
// documents. Shares are not negative and sum to at most 1.
inline void ExpectSharesAgree(const MixerConfig& config, int64_t dim, size_t num_pools) {
  constexpr int64_t kSeqLen = 30;
  const std::vector<int32_t> cu_seqlens = {0, 7, 30, 60};
  const auto slice = SequenceSlice::Packed(2, kSeqLen, cu_seqlens, at::kCPU);
  const FocusMixer mixer(config, dim, at::kDouble);
  const at::Tensor x = Normal({2, kSeqLen, dim}, 7);
  const auto explanations =
      dynamic_cast<const Explained&>(mixer.built.mixer()).Explain({.x = x, .slice = slice});
  ASSERT_EQ(explanations.size(), num_pools);
  for (const Explanation& pool : explanations) {
    const at::Tensor all = pool.Dense();  // [B, T, T, H]
    EXPECT_TRUE((all >= 0).all().item<bool>());
    EXPECT_TRUE((all.sum(2) <= 1 + 1e-12).all().item<bool>());
    EXPECT_TRUE((all.sum(2) >= 0.9).all().item<bool>());
    EXPECT_EQ(all[0][20][3].abs().max().item<double>(), 0);  // Another document.
    for (const int64_t place : {0, 6, 7, 29}) {
      EXPECT_TRUE(pool.Row(place).equal(all.select(1, place))) << place;
      EXPECT_TRUE(pool.Column(place).equal(all.select(2, place))) << place;
    }
    EXPECT_TRUE(pool.Importance().equal(all.select(1, kSeqLen - 1)));
    EXPECT_TRUE(Close(pool.Focus().mean(1), at::ones_like(pool.Focus().mean(1)), 1e-12));
  }
}

inline ModelConfig ModelOf(const MixerConfig& mixer, int64_t num_layers) {
  return {.vocab_size = 40,
          .model_dim = 16,
          .num_layers = num_layers,
          .initializer_range = 0.3,
          .norm = NormConfig("layer_norm"),
          .mixer = mixer,
          .channel_mixer = ChannelMixerConfig("mlp", {{"width", 16}})};
}
inline at::Tensor SomeTokens(int64_t batch, int64_t seq_len) {
  return (halflife::test::Uniform({batch, seq_len}, 3) * 40).to(at::kLong);
}
inline at::Tensor AllLogits(const LanguageModel& model, const at::Tensor& tokens) {
  const auto slice = SequenceSlice::Contiguous(tokens.size(0), tokens.size(1), 0, at::kCPU);
  return model.Logits(model.Hidden(tokens, {.slice = &slice}));
}

// Expects that a prefill and the steps after it equal a pass over the whole row, for prefills of
// every length. Rows of a state can be reordered. The model has 6 layers in fp32.
inline void ExpectStepsAreTheWhole(const MixerConfig& config,
                                   const std::vector<int64_t>& prefills) {
  constexpr int64_t kTotal = 356;  // 256 steps after the longest prefill.
  const c10::AutoGradMode no_grad(false);
  LanguageModel model(ModelOf(config, 6));
  model.BindOwnMemory(1, false);
  const at::Tensor tokens = SomeTokens(2, kTotal);
  const at::Tensor want = AllLogits(model, tokens);
  for (const int64_t prefill : prefills) {
    ModelState state = model.EmptyState(2);
    const auto slice = SequenceSlice::Contiguous(2, prefill, 0, at::kCPU);
    model.Hidden(tokens.narrow(1, 0, prefill), {.slice = &slice}, &state);
    for (MixerState& layer : state.layers)
      for (at::Tensor& tensor : layer.tensors) tensor = tensor.flip(0);
    const int64_t end = std::min(kTotal, prefill == prefills.back() ? kTotal : prefill + 40);
    for (int64_t t = prefill; t < end; ++t) {
      const at::Tensor logits = model.Step(tokens.select(1, t).flip(0), state);
      ASSERT_TRUE(Close(logits.flip(0), want.select(1, t), 1e-4))
          << "token " << t << " after a prefill of " << prefill;
    }
  }
}

// Expects that a token affects the `reach` tokens after it and no bit of later ones, if all windows
// are local. The model has 2 layers, because with many layers the influence at the edge is below
// rounding.
inline void ExpectReach(const MixerConfig& config, int64_t reach) {
  constexpr int64_t kToken = 5;
  const c10::AutoGradMode no_grad(false);
  LanguageModel model(ModelOf(config, 2));
  model.BindOwnMemory(1, false);
  const at::Tensor tokens = SomeTokens(1, 60);
  at::Tensor moved = tokens.clone();
  moved[0][kToken] = (moved[0][kToken] + 1) % 40;
  const at::Tensor a = AllLogits(model, tokens)[0], b = AllLogits(model, moved)[0];
  for (int64_t t = 0; t < 60; ++t) {
    const bool hears = t >= kToken && t <= kToken + reach;
    if (!hears || t == kToken || t == kToken + reach) {
      EXPECT_EQ(!a[t].equal(b[t]), hears) << t;
    }
  }
}

// Compares a model with matrices and activations in bf16 and the rest in fp32, as in training on a
// GPU, with one in fp32. Logits of order 1 agree within the roundings of two layers, 2^-8 each,
// which the log weights of a sharp pool amplify about tenfold. Every parameter has a gradient.
inline void ExpectBf16IsClose(const MixerConfig& config) {
  LanguageModel wide(ModelOf(config, 2)), narrow(ModelOf(config, 2));
  wide.BindOwnMemory(1, false);
  narrow.BindOwnMemory(1, true);
  std::vector<at::Tensor> leaves;
  for (int i = 0; i < narrow.parameters().size(); ++i) {
    const bool fp32 = narrow.parameters().specs()[i].region == dist::Region::kFp32;
    const at::Tensor value = narrow.parameters().tensor(i).detach();
    leaves.push_back((fp32 ? value.clone() : value.to(at::kBFloat16)).requires_grad_());
    narrow.parameters().Bind(i, leaves.back());
  }
  const at::Tensor tokens = SomeTokens(2, 50);
  const at::Tensor got = AllLogits(narrow, tokens);
  EXPECT_TRUE(Close(got, AllLogits(wide, tokens), 0.15));
  for (const at::Tensor& grad : torch::autograd::grad({got.to(at::kFloat).square().sum()}, leaves))
    EXPECT_TRUE(grad.isfinite().all().item<bool>());
}

}  // namespace halflife::model::test
