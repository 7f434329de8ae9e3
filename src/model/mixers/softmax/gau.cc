// The gated attention unit (Hua et al., 2022) in the form of GAU-alpha. It has one head. Queries
// and keys share a narrow base z, and the wide values are gated by u, so the unit replaces a mixer
// and a channel mixer:
//
//   u, v, z = SiLU(x W_u), SiLU(x W_v), SiLU(x W_z),  q = g_q z + b_q,  k = g_k z + b_k,
//   y = (u * attention(q, k, v)) W_o
//
// It is causal, or an encoder that also sees later tokens. GAU-alpha's blocks are post-norm with a
// norm without weights and the channel mixer `none`.
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <vector>

#include "model/mixers/softmax/attention.h"
#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/rows/bias_map.h"
#include "ops/rows/swiglu.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

// softmax_plus (Su, 2022): scores scale with the logarithm of the number of keys; factor 1 at 512.
constexpr int64_t kSoftmaxPlusLength = 512;

struct GauOptions : OptionsOf<GauOptions, AttentionOptions> {
  int64_t width = 0;  // e, the width of u and v; 0: 2 model_dim
  int64_t key_dim = 128;
  std::string normaliser = "softmax";
  bool bias = false;  // biases of the matrices, and b_q and b_k

  std::vector<Option> Fields() override {
    std::vector<Option> fields = {
        {"width", &width, {.min = 0}},
        {"key_dim", &key_dim},
        {"normaliser", &normaliser, {.choices = {"softmax", "softmax_plus", "squared_relu"}}},
        {"bias", &bias}};
    std::ranges::copy(AttentionOptions::Fields(), std::back_inserter(fields));
    return fields;
  }
  bool scales_queries() const override {
    return normaliser == "softmax_plus" || AttentionOptions::scales_queries();
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    if (width == 0) width = 2 * sizes.model_dim;
    problems.Require(
        normaliser == "softmax" || query_scale.form == "none", "normaliser ", normaliser,
        " with query_scale ", query_scale.form,
        normaliser == "softmax_plus" ? ", which it includes" : ", which only scales its outputs",
        ". Use normaliser softmax, or query_scale none.");
    ResolveFor(key_dim, problems);
  }
};

AttentionOptions AttentionOf(const GauOptions& options) {
  AttentionOptions attention = options;
  if (options.normaliser == "softmax_plus")
    attention.query_scale = {.form = "log",
                             .mode = "train",
                             .length = kSoftmaxPlusLength,
                             .dim = options.key_dim,
                             .bias = options.query_scale.bias};
  return attention;
}

class Gau : public Mixer {
 public:
  Gau(const GauOptions& options, const PartContext& context)
      : options_(options), model_dim_(context.model_dim()) {
    const int64_t width = options.width, key_dim = options.key_dim;
    u_ = DeclareMatrix(context, "u_proj.weight", {.out = width, .in = model_dim_});
    v_ = DeclareMatrix(context, "v_proj.weight",
                       {.out = width, .in = model_dim_, .init_scale = context.value_init_scale});
    z_ = DeclareMatrix(context, "z_proj.weight", {.out = key_dim, .in = model_dim_});
    q_gain_ = DeclareNorm(context, "q_gain", key_dim);
    k_gain_ = DeclareNorm(context, "k_gain", key_dim);
    if (options.bias) {
      u_bias_ = DeclareBias(context, "u_proj.bias", width);
      v_bias_ = DeclareBias(context, "v_proj.bias", width);
      z_bias_ = DeclareBias(context, "z_proj.bias", key_dim);
      q_offset_ = DeclareBias(context, "q_offset", key_dim);
      k_offset_ = DeclareBias(context, "k_offset", key_dim);
    }
    attention_ = Attention(AttentionOf(options),
                           {.num_heads = 1,
                            .num_kv_heads = 1,
                            .head_dim = key_dim,
                            .head_dim_v = width,
                            .squared_relu = options.normaliser == "squared_relu"},
                           context);
    out_ = OutputProjection(context, width, options.bias);
  }

  MixerTraits traits() const override { return attention_.traits(); }

  MixerOutput Forward(const MixerCall& call) const override {
    const Projected projected = Project(call.x);
    Attention::Output out = attention_.Forward(call, projected.heads);
    return {.y = out_(ops::SwiGlu(projected.u, out.y, projected.of_u)),
            .state = {.tensors = std::move(out.state)}};
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                  MixerState& state) const override {
    const Projected projected = Project(x.unsqueeze(1));
    const at::Tensor values = attention_.Step(projected.heads, token, state);
    return out_(ops::SwiGlu(projected.u, values)).squeeze(1);
  }

  FlopCount FlopsPerToken(int64_t seq_len) const override {
    return {.matmul = 2 * static_cast<double>(model_dim_ * (3 * options_.width + options_.key_dim)),
            .mixing = attention_.MixingFlops(seq_len)};
  }

  // x, u and v before SiLU, z before and after SiLU, and the gated output. The attention counts v
  // after SiLU.
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    const auto elements =
        static_cast<double>(model_dim_ + 3 * options_.width + 2 * options_.key_dim);
    return elements * static_cast<double>(bytes_per_element) +
           attention_.ActivationBytes(bytes_per_element);
  }
  double GpuActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override {
    return attention_.GpuActivationBytes(seq_len, bytes_per_element);
  }

 private:
  struct Projected {
    at::Tensor u;           // [B, T, e], before SiLU
    ops::ColumnSlice of_u;  // where the gradient of u is written
    Attention::Heads heads;
  };

  Projected Project(const at::Tensor& x) const {
    const std::vector<ops::LinearPart> y = ops::SharedInputParts(x, {*u_, *v_, *z_});
    constexpr auto kSilu = kernels::ElementMap::kSilu;
    const auto value = [](const Parameter& of) { return of.declared() ? *of : at::Tensor(); };
    const std::vector<at::Tensor> mapped = ops::BiasMap(
        {{.x = y[0].y, .bias = value(u_bias_), .gradient = y[0].gradient},
         {.x = y[1].y, .bias = value(v_bias_), .map = kSilu, .gradient = y[1].gradient},
         {.x = y[2].y, .bias = value(z_bias_), .map = kSilu, .gradient = y[2].gradient}});
    const at::Tensor& z = mapped[2];
    const std::vector<at::Tensor> gained =
        ops::BiasMap({{.x = z, .bias = value(q_offset_), .gain = *q_gain_},
                      {.x = z, .bias = value(k_offset_), .gain = *k_gain_}});
    Projected result = {.u = mapped[0], .of_u = {}, .heads = {}};
    if (!u_bias_.declared()) result.of_u = y[0].gradient;  // u is that column
    result.heads.q = gained[0].unsqueeze(2), result.heads.k = gained[1].unsqueeze(2);
    result.heads.v = mapped[1].unsqueeze(2);
    return result;
  }

  GauOptions options_;
  int64_t model_dim_;
  Parameter u_, v_, z_, q_gain_, k_gain_, u_bias_, v_bias_, z_bias_, q_offset_, k_offset_;
  Attention attention_;
  OutputProjection out_;
};

}  // namespace

MixerVariant GauVariant() { return MixerVariantOf<GauOptions, Gau>("gau"); }

}  // namespace halflife::model
