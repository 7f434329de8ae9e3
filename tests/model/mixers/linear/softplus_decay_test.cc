// The decays of Gated DeltaNet and Kimi Delta Attention: values, limits, gradients and initial
// values of their parameters.
#include "model/mixers/linear/log_decay.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/random_tensors.h"

namespace halflife::model {
namespace {

// A decay from inputs of one channel.
struct BuiltDecay {
  ParameterSet parameters;
  std::unique_ptr<SoftplusDecay> decay;
  std::map<std::string, at::Tensor> tensors;

  explicit BuiltDecay(const SoftplusDecayForm& form, at::ScalarType dtype = at::kDouble) {
    decay = std::make_unique<SoftplusDecay>(
        form, PartContext{.sizes = {.model_dim = 1}, .parameters = &parameters});
    for (int i = 0; i < parameters.size(); ++i) {
      const dist::ParamSpec& spec = parameters.specs()[i];
      at::Tensor value = at::zeros(spec.shape, dtype);
      if (spec.name.ends_with("weight")) value.fill_(1);
      tensors[spec.name] = value.requires_grad_();
      parameters.Bind(i, tensors[spec.name]);
    }
  }
  // `z` [B, T, H] are the products of the only matrix.
  at::Tensor operator()(const at::Tensor& z) const {
    return (*decay)(std::array{ops::LinearPart{.y = z}}, /*b=*/{}, /*beta_scale=*/1).log_decay;
  }
};

TEST(SoftplusDecayTest, IsMinusASoftplus) {
  const BuiltDecay built({.num_heads = 2});
  built.tensors.at("A_log").detach().copy_(at::tensor({0.5, -1.0}, at::kDouble));
  built.tensors.at("dt_bias").detach().copy_(at::tensor({0.25, -0.5}, at::kDouble));
  const at::Tensor z = test::Normal({2, 5, 2}, 1, at::kDouble).requires_grad_();
  const at::Tensor got = built(z);
  const at::Tensor y = z.detach() + built.tensors.at("dt_bias").detach();
  const at::Tensor want = -(1 + y.exp()).log() * built.tensors.at("A_log").detach().exp();
  EXPECT_TRUE(test::Close(got, want, 1e-12));
  // dA_log = sum of g dg, and dz = -exp(A_log) sigmoid(y) dg, with dg = 1.
  got.sum().backward();
  const auto sum = [](const at::Tensor& x) { return x.sum(at::IntArrayRef{0, 1}); };
  EXPECT_TRUE(test::Close(built.tensors.at("A_log").grad(), sum(want), 1e-12));
  const at::Tensor dz = -y.sigmoid() * built.tensors.at("A_log").detach().exp();
  EXPECT_TRUE(test::Close(z.grad(), dz, 1e-12));
  EXPECT_TRUE(test::Close(built.tensors.at("dt_bias").grad(), sum(dz), 1e-12));
}

TEST(SoftplusDecayTest, ExtremeLogitsAreFinite) {
  const BuiltDecay wide({.num_heads = 1}), narrow({.num_heads = 1}, at::kFloat);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(dtype);
    const BuiltDecay& built = dtype == at::kDouble ? wide : narrow;
    const at::Tensor got =
        built(at::tensor({-100.0, 100.0}, at::kDouble).view({1, 2, 1}).to(dtype));
    EXPECT_NEAR(got[0][0][0].item<double>(), -std::exp(-100.0),
                dtype == at::kDouble ? 1e-50 : 1e-37);
    EXPECT_EQ(got[0][1][0].item<double>(), -100);
  }
}

TEST(SoftplusDecayTest, ABoundIsNeverExceeded) {
  const BuiltDecay built({.num_heads = 1, .num_channels = 4, .rank = 1, .lower_bound = -5});
  for (const double logit : {-1e4, -30.0, 0.0, 30.0, 1e4}) {
    const at::Tensor got = built(at::full({1, 1, 1}, logit, at::kDouble));
    EXPECT_EQ(got.sizes(), at::IntArrayRef({1, 1, 1, 4}));
    EXPECT_GE(got.min().item<double>(), -5) << logit;
    EXPECT_LE(got.max().item<double>(), 0) << logit;
    EXPECT_NEAR(got[0][0][0][0].item<double>(), -5 / (1 + std::exp(-logit)), 1e-12) << logit;
  }
}

// A range that begins at 0 would contain heads with A = 0, whose A_log is -inf.
TEST(SoftplusDecayTest, AMillionHeadsStartAlive) {
  constexpr int64_t kHeads = 1 << 20;
  const BuiltDecay built({.num_heads = kHeads, .initial_min = 0.01});
  for (int i = 0; i < built.parameters.size(); ++i) {
    const dist::ParamSpec& spec = built.parameters.specs()[i];
    if (spec.name.ends_with("weight")) continue;
    SCOPED_TRACE(spec.name);
    EXPECT_EQ(spec.region, dist::Region::kFp32);
    EXPECT_FALSE(spec.weight_decay);
    std::vector<float> values(kHeads);
    built.parameters.Initialise(i, /*seed=*/7, values.data());
    const auto [least, most] = std::ranges::minmax(values);
    // softplus of dt_bias is in [0.001, 0.1].
    const bool of_bias = spec.name == "dt_bias";
    EXPECT_GE(least, of_bias ? -6.907256 : std::log(0.01) - 1e-6);
    EXPECT_LE(most, of_bias ? -2.252168 : std::log(16.0) + 1e-6);
  }
}

}  // namespace
}  // namespace halflife::model
