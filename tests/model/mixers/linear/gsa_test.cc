// Gated slot attention: the formula of a layer.
#include <ATen/TensorOperators.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "model/mixers/built_mixer.h"
#include "support/expect_error.h"

namespace halflife::model {
namespace {

using test::Normal;

struct Form {
  int64_t num_heads, num_kv_heads, num_slots;
  double normaliser;
  bool t2r;
};

// Computes one row x [T, D], token by token. Head h of q reads head h / (H / Hk) of the others.
at::Tensor Formula(const at::Tensor& x, const test::BuiltMixer& p, const Form& form) {
  const int64_t group = form.num_heads / form.num_kv_heads;
  const auto heads = [&](const at::Tensor& y, int64_t count) {
    return y.view({-1, count, y.size(1) / count});
  };
  const auto repeated = [&](const at::Tensor& y) {
    return heads(y, form.num_kv_heads).repeat_interleave(group, 1);
  };
  at::Tensor q = heads(at::linear(x, p["q_proj.weight"]), form.num_heads),
             k = repeated(at::linear(x, p["k_proj.weight"]));
  if (form.t2r) {
    q = at::relu(at::linear(q, p["feature_map_q.layer.weight"]));
    k = at::relu(at::linear(k, p["feature_map_q.layer.weight"]));
  } else {
    q = at::silu(q), k = at::silu(k);
  }
  const at::Tensor v = repeated(at::silu(at::linear(x, p["v_proj.weight"]))),
                   f = repeated(at::log_sigmoid(at::linear(x, p["f_proj.weight"]))) /
                       form.normaliser;
  at::Tensor keys = at::zeros({form.num_heads, k.size(2), form.num_slots}, x.options()),
             values = at::zeros({form.num_heads, form.num_slots, v.size(2)}, x.options());
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    const at::Tensor alpha = f[t].exp(), s = 1 - alpha;
    keys = keys * alpha.unsqueeze(1) + k[t].unsqueeze(2) * s.unsqueeze(1);
    values = alpha.unsqueeze(2) * values + s.unsqueeze(2) * v[t].unsqueeze(1);
    const at::Tensor weights = at::softmax(at::matmul(q[t].unsqueeze(1), keys), -1);
    rows.push_back(at::matmul(weights, values).flatten());
  }
  const at::Tensor o = at::silu(at::stack(rows));
  const at::Tensor normed = o / (o.square().mean(-1, true) + 1e-5).sqrt() * p["g_norm.weight"];
  return at::linear(normed, p["o_proj.weight"]);
}

TEST(GsaTest, IsTheRecurrence) {
  constexpr int64_t kDim = 12, kSeqLen = 70;
  for (const Form& form :
       {Form{2, 2, 5, 8, false}, Form{6, 2, 3, 1.5, false}, Form{3, 1, 4, 1, true}}) {
    SCOPED_TRACE(form.num_heads);
    test::BuiltMixer built(
        MixerConfig("gsa", {{"num_heads", form.num_heads},
                            {"num_kv_heads", form.num_kv_heads},
                            {"num_slots", form.num_slots},
                            {"gate_normaliser", form.normaliser},
                            {"feature_map", std::string(form.t2r ? "t2r" : "silu")}}),
        kDim);
    built.Set("g_norm.weight", Normal({kDim}, 5));
    built.ExpectFormula({2, kSeqLen, kDim}, {1e-12, 1e-11}, [&](const at::Tensor& x) {
      return at::stack({Formula(x[0], built, form), Formula(x[1], built, form)});
    });
  }
}

TEST(GsaTest, NamesTheFix) {
  const auto problems = [](const std::vector<Assignment>& options) {
    MixerConfig config("gsa", options);
    return config.Resolve({.model_dim = 2048, .num_layers = 2});
  };
  EXPECT_THAT(
      problems({{"gate_normaliser", 0.0}}),
      testing::ElementsAre("mixer gsa: option gate_normaliser is 0. Use a number above 0."));
  EXPECT_THAT(problems({{"num_heads", 2}}),
              testing::ElementsAre("mixer gsa: a head has 1024 channels of k and 1024 of v. Use "
                                   "more heads, for at most 512 channels."));
  EXPECT_THAT(problems({{"num_slots", 257}}),
              testing::ElementsAre(testing::HasSubstr("at most 256")));
}

}  // namespace
}  // namespace halflife::model
