// Gated DeltaProduct: the steps of a token one by one, and one step.
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "model/mixers/built_mixer.h"

namespace halflife::model {
namespace {

using test::Close;
using test::Normal;

at::Tensor UnitRows(const at::Tensor& x) { return x / (x.square().sum(-1, true) + 1e-6).sqrt(); }

struct Form {
  int64_t num_heads, head_dim, steps;
  bool decays, negative;
};

// Computes one row x [T, D]: all steps of a token, one after the other.
at::Tensor Formula(const at::Tensor& x, const test::BuiltMixer& p, const Form& form) {
  const int64_t H = form.num_heads, K = form.head_dim, n = form.steps;
  const auto project = [&](const char* name) { return at::linear(x, p[name]); };
  const at::Tensor q = UnitRows(at::silu(project("q_proj.weight")).view({-1, H, K})),
                   k = UnitRows(at::silu(project("k_proj.weight")).view({-1, n, H, K})),
                   v = at::silu(project("v_proj.weight")).view({-1, n, H, K}),
                   beta = (form.negative ? 2 : 1) *
                          at::sigmoid(project("b_proj.weight")).view({-1, n, H});
  at::Tensor decay = at::ones({x.size(0), H}, x.options());
  if (form.decays)
    decay = (-p["A_log"].exp() * at::softplus(project("a_proj.weight") + p["dt_bias"])).exp();
  at::Tensor state = at::zeros({H, K, K}, x.options());
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    state = state * decay[t].view({H, 1, 1});
    for (int64_t i = 0; i < n; ++i) {
      const at::Tensor key = k[t][i].unsqueeze(1), old = at::matmul(key, state);
      state =
          state + key.transpose(1, 2) * (beta[t][i].view({H, 1, 1}) * (v[t][i].unsqueeze(1) - old));
    }
    rows.push_back(at::matmul(q[t].unsqueeze(1), state).squeeze(1) /
                   std::sqrt(static_cast<double>(K)));
  }
  const at::Tensor o = at::stack(rows);
  const at::Tensor normed = o / (o.square().mean(-1, true) + 1e-6).sqrt() * p["o_norm.weight"];
  return at::linear(normed.flatten(1) * at::silu(project("g_proj.weight")), p["o_proj.weight"]);
}

TEST(GatedDeltaProductTest, IsItsStepsOneByOne) {
  constexpr int64_t kDim = 8, kSeqLen = 40;
  for (const Form& form : {Form{2, 4, 2, true, false}, Form{1, 6, 3, false, true}}) {
    SCOPED_TRACE(form.steps);
    test::BuiltMixer built(
        MixerConfig("gated_delta_product", {{"num_heads", form.num_heads},
                                            {"head_dim", form.head_dim},
                                            {"num_householder", form.steps},
                                            {"use_short_conv", false},
                                            {"use_forget_gate", form.decays},
                                            {"allow_neg_eigval", form.negative}}),
        kDim);
    built.ExpectFormula({2, kSeqLen, kDim}, {1e-11, 1e-10}, [&](const at::Tensor& x) {
      return at::stack({Formula(x[0], built, form), Formula(x[1], built, form)});
    });
  }
}

TEST(GatedDeltaProductTest, OneStepIsGatedDeltaNet) {
  constexpr int64_t kDim = 8;
  const test::BuiltMixer product(
      MixerConfig("gated_delta_product", {{"num_heads", 2}, {"num_householder", 1}}), kDim);
  test::BuiltMixer plain(MixerConfig("gated_delta_net", {{"num_heads", 2}}), kDim);
  for (const dist::ParamSpec& spec : plain.parameters().specs())
    plain.Set(spec.name, product[spec.name]);
  const at::Tensor x = Normal({2, 30, kDim}, 1);
  EXPECT_TRUE(product.Run(x).equal(plain.Run(x)));
}

}  // namespace
}  // namespace halflife::model
