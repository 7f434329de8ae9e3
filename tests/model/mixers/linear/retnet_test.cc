// RetNet's retention equals its parallel form, which is checked against published values. Decays
// and angles equal those of torchscale's code.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "model/mixers/built_mixer.h"
#include "model/mixers/linear/decay_recurrence.h"
#include "model/mixers/linear/log_decay.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/rows/rotary.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;

// q and k [T, K], v [T, V] of one head -> [T, V], for a value of row_norm.
at::Tensor Parallel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double gamma,
                    const std::string& row_norm) {
  const at::Tensor n = at::arange(q.size(0), at::kDouble);
  const at::Tensor gap = n.unsqueeze(1) - n;
  at::Tensor decay = at::pow(at::Scalar(gamma), gap.clamp_min(0)) * (gap >= 0).to(at::kDouble);
  if (row_norm != "none") decay = decay / decay.sum(1, true).sqrt();
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(1)));
  at::Tensor scores = q.matmul(k.t()) * scale * decay;
  if (row_norm == "torchscale_parallel")
    scores = scores / scores.detach().abs().sum(1, true).clamp(1, 5e4);
  return scores.matmul(v);
}

TEST(RetNetTest, ParallelFormsWorkedValues) {
  const at::Tensor q = at::tensor({1.0, 0.0, 0.0, 1.0, 1.0, 1.0}, at::kDouble).view({3, 2}),
                   k = at::tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, at::kDouble).view({3, 2}),
                   v = at::tensor({1.0, -1.0, 2.0}, at::kDouble).view({3, 1});
  const auto expect = [&](const char* row_norm, double a, double b, double c, double tolerance,
                          double factor = 1) {
    EXPECT_TRUE(Close(Parallel(q * factor, k, v, 31.0 / 32, row_norm).flatten(),
                      at::tensor({a, b, c}, at::kDouble), tolerance));
  };
  expect("none", 0.707106781, -1.458407736, 12.75209075, 1e-9);
  expect("decay", 0.707106781, -1.039402301, 7.478972834, 1e-9);
  // Row sums of absolute scores: 0.7071, which counts as 1, then 2.9922 and 8.5417. Then all sums
  // exceed 50,000.
  expect("torchscale_parallel", 0.707106781, -0.347368, 0.875584, 1e-5);
  expect("torchscale_parallel", 1.414214, -2.078805, 14.957946, 1e-5, 1e5);
  // The kernel itself implements "none".
  const auto head = [](const at::Tensor& x) { return x.view({1, 3, 1, -1}); };
  const auto out =
      ops::DecayAttention({.q = head(q),
                           .k = head(k),
                           .v = head(v),
                           .log_decay = at::tensor({std::log(31.0 / 32)}, at::kDouble)},
                          {.scale = 1 / std::sqrt(2.0)});
  EXPECT_TRUE(Close(out.out.flatten(),
                    at::tensor({0.707106781, -1.458407736, 12.75209075}, at::kDouble), 1e-9));
}

at::Tensor Rotated(const at::Tensor& x, int64_t dim) {  // [1, T, H, K]
  std::vector<double> frequencies;
  for (int64_t j = 0; j < dim / 2; ++j)
    frequencies.push_back(
        std::pow(10000.0, -static_cast<double>(j) / static_cast<double>(dim / 2 - 1)));
  const at::Tensor positions = at::arange(x.size(1), at::kLong).unsqueeze(0);
  return ops::ApplyRotary(x,
                          ops::MakeRotaryTable(positions, frequencies, /*factor=*/1, at::kDouble));
}

constexpr int64_t kDim = 16, kHeads = 2;

// Computes [1, T, D] from x [1, T, D] with the matrices of `mixer`. Differentiable in x.
at::Tensor ByItsParallelForm(const BuiltMixer& mixer, const at::Tensor& x,
                             const std::string& row_norm) {
  const auto project = [&](const char* name, int64_t width) {
    return x.matmul(mixer[name].t()).view({1, x.size(1), kHeads, width});
  };
  const at::Tensor q = Rotated(project("q_proj.weight", 8), 8),
                   k = Rotated(project("k_proj.weight", 8), 8), v = project("v_proj.weight", 16),
                   gate = project("g_proj.weight", 16);
  std::vector<at::Tensor> heads;
  for (int64_t h = 0; h < kHeads; ++h) {
    const double gamma = 1 - std::exp2(-5.0 - static_cast<double>(h));
    const auto of_head = [&](const at::Tensor& y) { return y[0].select(1, h); };
    const at::Tensor o = Parallel(of_head(q), of_head(k), of_head(v), gamma, row_norm);
    const at::Tensor normed = o * (o.square().mean(-1, true) + 1e-6).rsqrt();
    heads.push_back(at::silu(of_head(gate)) * normed);
  }
  return at::cat(heads, 1).matmul(mixer["o_proj.weight"].t()).unsqueeze(0);
}

// Also compares the gradient. The divisor by scores has none.
TEST(RetNetTest, IsTheParallelForm) {
  for (const char* row_norm : {"decay", "none", "torchscale_parallel"}) {
    SCOPED_TRACE(row_norm);
    BuiltMixer mixer(MixerConfig("retnet", {{"num_heads", kHeads}, {"row_norm", row_norm}}), kDim);
    // Head outputs near the root of the norm's eps, so that row factors make a difference.
    mixer.Set("v_proj.weight", mixer["v_proj.weight"] * 1e-3);
    const at::Tensor x = Normal({1, 150, kDim}, 1).requires_grad_();
    const at::Tensor got = mixer.Run(x), want = ByItsParallelForm(mixer, x, row_norm);
    // The kernel computes logarithms of the decays in fp32: an error of e^(2^-24 n) over 150
    // tokens.
    EXPECT_TRUE(Close(got, want, 1e-6));
    const at::Tensor weight = Normal({1, 150, kDim}, 2);
    const auto gradient = [&](const at::Tensor& y) {
      return torch::autograd::grad({(y * weight).sum()}, {x})[0];
    };
    EXPECT_TRUE(Close(gradient(got), gradient(want), 1e-4));  // Values near 10.
  }
}

// A head's norm cancels row factors except for its eps. Without eps all three modes are equal. With
// 1e-6 and small outputs they differ by a few thousandths.
TEST(RetNetTest, RowNormsAreUndoneByTheHeadsNorm) {
  const auto run = [](const char* row_norm, double factor) {
    BuiltMixer mixer(MixerConfig("retnet", {{"num_heads", int64_t{2}}, {"row_norm", row_norm}}),
                     16);
    mixer.Set("v_proj.weight", mixer["v_proj.weight"] * factor);
    return mixer.Run(Normal({2, 90, 16}, 2));
  };
  for (const char* row_norm : {"none", "torchscale_parallel"}) {
    EXPECT_TRUE(Close(run("decay", 1e6), run(row_norm, 1e6), 1e-9)) << row_norm;
    EXPECT_FALSE(Close(run("decay", 1e-3), run(row_norm, 1e-3), 1e-2)) << row_norm;
  }
}

// Without an earlier state, the row's position has no influence, except on the sum of decays, which
// the norm cancels (test 15).
TEST(RetNetTest, DependsOnlyOnDistances) {
  const BuiltMixer mixer(MixerConfig("retnet", {{"num_heads", int64_t{2}}, {"row_norm", "none"}}),
                         16);
  const at::Tensor x = Normal({1, 40, 16}, 3);
  auto there = SequenceSlice::Contiguous(1, 40, 0, at::kCPU);
  there.positions = there.positions + 5000;
  EXPECT_TRUE(Close(mixer->Forward({.x = x, .slice = there}).y, mixer.Run(x), 1e-9));
}

// The norm is per head (test 16): values of one head change no other head.
TEST(RetNetTest, AHeadsValuesAreItsOwn) {
  BuiltMixer mixer(MixerConfig("retnet", {{"num_heads", int64_t{2}}}), 16);
  const at::Tensor x = Normal({1, 40, 16}, 4), identity = at::eye(16, 32, at::kDouble);
  mixer.Set("o_proj.weight", identity);  // Exposes the first head's values.
  const at::Tensor before = mixer.Run(x);
  at::Tensor values = mixer["v_proj.weight"].clone();
  values.narrow(0, 16, 16).mul_(100);
  mixer.Set("v_proj.weight", values);
  EXPECT_TRUE(test::BitEqual(mixer.Run(x), before));
  values.narrow(0, 0, 16).mul_(2);
  mixer.Set("v_proj.weight", values);
  EXPECT_FALSE(test::BitEqual(mixer.Run(x), before));
}

// A query sees only the keys of its document, and after a carried state also the earlier ones. The
// conformance suite compares this for slices and documents.
TEST(RetNetTest, ScoreSumsOfDocuments) {
  const at::Tensor q = Normal({1, 300, 4, 6}, 5), k = Normal({1, 307, 2, 6}, 6);
  at::Tensor positions = at::arange(300).unsqueeze(0) + 7;  // After a state of seven tokens.
  positions.narrow(1, 200, 100).sub_(207);
  const at::Tensor log_decay = at::tensor({-0.1, -0.01, 0.0, -0.5});
  const at::Tensor sums =
      ScoreSums({.q = q, .k = k, .positions = positions, .log_decay = log_decay, .scale = 0.25});
  for (const int64_t t : {0, 127, 128, 199, 200, 299})
    for (int64_t h = 0; h < 4; ++h) {
      double sum = 0;
      for (int64_t key = t < 200 ? 0 : 207; key <= t + 7; ++key)
        sum += std::abs(0.25 * (q[0][t][h] * k[0][key][h / 2]).sum().item<double>()) *
               std::exp(log_decay[h].item<double>() * static_cast<double>(t + 7 - key));
      EXPECT_NEAR(sums[0][t][h].item<double>(), sum, 1e-12 * sum) << t << " " << h;
    }
  // A NaN in a key affects every query that sees the key.
  k.select(1, 107).fill_(std::nan(""));
  const at::Tensor heard =
      ScoreSums({.q = q, .k = k, .positions = positions, .log_decay = log_decay, .scale = 0.25});
  EXPECT_TRUE(test::BitEqual(heard.narrow(1, 0, 100), sums.narrow(1, 0, 100)));
  EXPECT_TRUE(heard.narrow(1, 100, 100).isnan().all().item<bool>());
  EXPECT_TRUE(test::BitEqual(heard.narrow(1, 200, 100), sums.narrow(1, 200, 100)));
}

TEST(RetNetTest, Decays) {
  const std::vector<double> usual = RetentionLogDecays(32);
  EXPECT_NEAR(std::exp(512 * usual[0]), 8.7e-8, 1e-9);
  EXPECT_NEAR(std::exp(512 * usual[4]), 0.368, 1e-3);
  EXPECT_LT(usual[31], 0);  // gamma itself rounds to 1.
  // With bf16 operands the log decays stay fp32, and none is 0. gamma itself is 1 in fp32 from head
  // 20 on.
  const at::Tensor stored = FixedDecay(usual)(at::empty({1, 1, 4}, at::kBFloat16), {});
  EXPECT_EQ(stored.scalar_type(), at::kFloat);
  EXPECT_EQ(1.0F - std::exp2(-25.0F), 1.0F);
  for (int64_t h = 0; h < 32; ++h)
    EXPECT_NEAR(stored[h].item<double>() / std::log1p(-std::exp2(-5.0 - static_cast<double>(h))), 1,
                0x1p-24)
        << h;
  const std::vector<double> range = RetentionLogDecaysOfRange(8);
  EXPECT_NEAR(std::exp(range.front()), 31.0 / 32, 1e-12);
  EXPECT_NEAR(std::exp(range.back()), 511.0 / 512, 1e-12);
}

// 2 D^2 + 3 D D_v parameters: the sizes of torchscale's base and medium models.
TEST(RetNetTest, Parameters) {
  const BuiltMixer base(MixerConfig("retnet", {{"num_heads", int64_t{2}}, {"expand_v", 1.6875}}),
                        512);
  EXPECT_EQ(base.parameters().num_elements(), 2 * 512 * 512 + 3 * 512 * 864);
}

}  // namespace
}  // namespace halflife::model
