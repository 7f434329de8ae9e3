// RetNet's retention against its parallel form, which is held to worked values, and the decays and
// angles that torchscale's code has.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>

#include <cmath>

#include "kernels/rotary/rotary.h"
#include "model/mixers/built_mixer.h"
#include "model/mixers/decay/fixed_decay.h"

namespace halflife::model {
namespace {

using test::BuiltMixer;
using test::Close;
using test::Normal;

// q and k [T, K], v [T, V] of one head -> [T, V], rows divided by the root of their decays' sum or
// not.
at::Tensor Parallel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double gamma,
                    bool row_norm) {
  const at::Tensor n = at::arange(q.size(0), at::kDouble);
  const at::Tensor gap = n.unsqueeze(1) - n;
  at::Tensor decay = at::pow(at::Scalar(gamma), gap.clamp_min(0)) * (gap >= 0).to(at::kDouble);
  if (row_norm) decay = decay / decay.sum(1, true).sqrt();
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(1)));
  return (q.matmul(k.t()) * scale * decay).matmul(v);
}

TEST(RetNetTest, ParallelFormsWorkedValues) {
  const at::Tensor q = at::tensor({1.0, 0.0, 0.0, 1.0, 1.0, 1.0}, at::kDouble).view({3, 2}),
                   k = at::tensor({1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, at::kDouble).view({3, 2}),
                   v = at::tensor({1.0, -1.0, 2.0}, at::kDouble).view({3, 1});
  const auto expect = [&](bool row_norm, double a, double b, double c) {
    EXPECT_TRUE(Close(Parallel(q, k, v, 31.0 / 32, row_norm).flatten(),
                      at::tensor({a, b, c}, at::kDouble), 1e-9));
  };
  expect(false, 0.707106781, -1.458407736, 12.75209075);
  expect(true, 0.707106781, -1.039402301, 7.478972834);
}

at::Tensor Rotated(const at::Tensor& x, int64_t dim) {  // [1, T, H, K]
  std::vector<double> frequencies;
  for (int64_t j = 0; j < dim / 2; ++j)
    frequencies.push_back(
        std::pow(10000.0, -static_cast<double>(j) / static_cast<double>(dim / 2 - 1)));
  const at::Tensor positions = at::arange(x.size(1), at::kLong).unsqueeze(0);
  return kernels::ApplyRotary(x, kernels::MakeRotaryTable(positions, frequencies));
}

TEST(RetNetTest, IsTheParallelForm) {
  constexpr int64_t kDim = 16, kHeads = 2, kSeqLen = 150;
  for (const bool row_norm : {true, false}) {
    const BuiltMixer mixer(
        MixerConfig("retnet", {{"num_heads", kHeads}, {"row_norm", row_norm ? "decay" : "none"}}),
        kDim);
    const at::Tensor x = Normal({1, kSeqLen, kDim}, 1);
    const auto project = [&](const char* name, int64_t width) {
      return x.matmul(mixer[name].t()).view({1, kSeqLen, kHeads, width});
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
    const at::Tensor want = at::cat(heads, 1).matmul(mixer["o_proj.weight"].t()).unsqueeze(0);
    // the kernel takes logarithms of the decays in fp32: e^(2^-24 n) over 150 tokens
    EXPECT_TRUE(Close(mixer.Run(x), want, 1e-6)) << row_norm;
  }
}

// The norm of a head undoes a factor of its row but for eps: both agree where rows are large.
TEST(RetNetTest, RowNormIsUndoneByTheHeadsNorm) {
  const auto run = [](const char* row_norm) {
    BuiltMixer mixer(MixerConfig("retnet", {{"num_heads", int64_t{2}}, {"row_norm", row_norm}}),
                     16);
    mixer.Set("v_proj.weight", mixer["v_proj.weight"] * 1e4);
    return mixer.Run(Normal({2, 90, 16}, 2));
  };
  EXPECT_TRUE(Close(run("decay"), run("none"), 1e-7));
}

TEST(RetNetTest, Decays) {
  const std::vector<double> usual = RetentionLogDecays(32);
  EXPECT_NEAR(std::exp(512 * usual[0]), 8.7e-8, 1e-9);
  EXPECT_NEAR(std::exp(512 * usual[4]), 0.368, 1e-3);
  EXPECT_LT(usual[31], 0);  // where gamma itself would be 1
  const std::vector<double> range = RetentionLogDecaysOfRange(8);
  EXPECT_NEAR(std::exp(range.front()), 31.0 / 32, 1e-12);
  EXPECT_NEAR(std::exp(range.back()), 511.0 / 512, 1e-12);
}

// 2 D^2 + 3 D D_v: the class of torchscale's base and medium sizes.
TEST(RetNetTest, Parameters) {
  const BuiltMixer base(MixerConfig("retnet", {{"num_heads", int64_t{2}}, {"expand_v", 1.6875}}),
                        512);
  EXPECT_EQ(base.parameters().num_elements(), 2 * 512 * 512 + 3 * 512 * 864);
}

}  // namespace
}  // namespace halflife::model
