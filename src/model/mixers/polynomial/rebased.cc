// ReBased (Aksenov et al., 2024): the similarity is the square s^2 of q and k that are normed and
// moved before, q^ = gamma (q - mean) / sqrt(var + 1e-5) + beta. In the paper's form the mean and
// the variance are over all heads' channels together, and gamma and beta are q's and k's own, of as
// many channels. fla's layer norms each head by itself, with one gamma and beta of feature_dim
// channels for q, k and all heads, 16 heads and an eps of 1e-5: norm_scope per_head, shared_affine,
// num_heads 16, eps 1e-5.
//
// Parameters: q_feature_map.gamma and .beta, k_feature_map.gamma and .beta (the authors' ln_q and
// ln_k, whose weight is gamma and whose bias is beta); shared, feature_map.gamma and .beta as in
// fla. Gamma scales what is divided by its own sum, so without beta only eps sees its size, and a
// weight decay of it would let it shrink for ever: as of every norm, there is none.
#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>

#include <optional>
#include <vector>

#include "model/mixers/heads.h"
#include "model/mixers/polynomial/polynomial_mixer.h"
#include "ops/rows/layer_norm.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

constexpr double kLayerNormEps = 1e-5;

struct RebasedOptions : OptionsOf<RebasedOptions, PolynomialOptions> {
  bool use_gamma = true, use_beta = true, normalize = true;
  std::string norm_scope = "joint";
  bool shared_affine = false;
  std::string kernel = "squared";

  std::vector<Option> Fields() override {
    std::vector<Option> fields = PolynomialOptions::Fields();
    fields.push_back({"use_gamma", &use_gamma});
    fields.push_back({"use_beta", &use_beta});
    fields.push_back({"normalize", &normalize});
    fields.push_back({"norm_scope", &norm_scope, {.choices = {"joint", "per_head"}}});
    fields.push_back({"shared_affine", &shared_affine});
    fields.push_back({"kernel", &kernel, {.choices = {"squared", "sq_elementwise"}}});
    return fields;
  }
};

// gamma and beta of q, of k, or of both; either may be absent.
struct Affine {
  Parameter gamma, beta;
};
Affine DeclareAffine(const RebasedOptions& options, const PartContext& context,
                     const std::string& name) {
  const int64_t width = options.shared_affine ? options.feature_dim : options.key_dim();
  const auto declare = [&](const char* field, const Init& init) {
    return context.parameters->Declare(
        {.name = context.prefix + name + field, .shape = {width}, .region = dist::Region::kFp32},
        init);
  };
  Affine affine;
  if (options.use_gamma) affine.gamma = declare(".gamma", Init::Ones());
  if (options.use_beta) affine.beta = declare(".beta", Init::Zeros());
  return affine;
}

// Whether gamma and beta are as wide as what is normed, so that one call does both.
bool IsLayerNorm(const RebasedOptions& options) {
  return options.normalize && options.use_gamma &&
         (options.norm_scope == "joint") != options.shared_affine;
}

// One part of the layer norm that q and k go through.
ops::LayerNormInput NormInput(const Affine& affine, const ops::LinearPart& part) {
  return {.x = part.y,
          .gamma = *affine.gamma,
          .beta = affine.beta.declared() ? *affine.beta : at::Tensor(),
          .x_gradient = part.gradient};
}

// Over all channels, with parameters of their own, in one pass; each head by itself with the same
// parameters, one after the other.
QueryKeyMaps::Mapped LayerNorm(const RebasedOptions& options, const Affine& of_q,
                               const Affine& of_k, const ops::LinearPart& q,
                               const ops::LinearPart& k) {
  if (!options.shared_affine) {
    const std::vector<at::Tensor> y =
        ops::LayerNorms({NormInput(of_q, q), NormInput(of_k, k)}, kLayerNormEps);
    return {.q = y[0], .k = y[1]};
  }
  ops::LayerNormInput input = {.gamma = ForEachUse(of_q.gamma)};
  if (of_q.beta.declared()) input.beta = ForEachUse(of_q.beta);
  const auto heads = [&](const at::Tensor& x) {
    input.x = SplitHeads(x, options.feature_dim);
    return ops::LayerNorms({input}, kLayerNormEps)[0].view(x.sizes());
  };
  return {.q = heads(q.y), .k = heads(k.y)};
}

// The other forms, in fp32 (fp64 beside fp64), as the parameters are.
at::Tensor NormAndMove(const RebasedOptions& options, const Affine& affine, const at::Tensor& x) {
  const bool joint = options.norm_scope == "joint";
  at::Tensor y = x.to(ops::ComputeType(x));
  if (options.normalize)
    y = at::layer_norm(joint ? y : SplitHeads(y, options.feature_dim),
                       {joint ? options.key_dim() : options.feature_dim}, std::nullopt,
                       std::nullopt, kLayerNormEps)
            .view(x.sizes());
  if (options.shared_affine) y = SplitHeads(y, options.feature_dim);
  if (affine.gamma.declared()) y = y * *affine.gamma;
  if (affine.beta.declared()) y = y + *affine.beta;
  return y.view(x.sizes()).to(x.scalar_type());
}

QueryKeyMaps MakeMaps(const RebasedOptions& options, const PartContext& context) {
  Affine of_q, of_k;
  if (options.shared_affine) {
    of_q = of_k = DeclareAffine(options, context, "feature_map");
  } else {
    of_q = DeclareAffine(options, context, "q_feature_map");
    of_k = DeclareAffine(options, context, "k_feature_map");
  }
  const auto map = [=](const ops::LinearPart& q, const ops::LinearPart& k) -> QueryKeyMaps::Mapped {
    if (IsLayerNorm(options)) return LayerNorm(options, of_q, of_k, q, k);
    return {.q = NormAndMove(options, of_q, q.y), .k = NormAndMove(options, of_k, k.y)};
  };
  // What is normed, and what gamma multiplies apart from that.
  const bool multiplies = options.use_gamma && !IsLayerNorm(options);
  const int64_t kept = (options.normalize ? 1 : 0) + (multiplies ? 1 : 0);
  return {.both = map,
          .takes_places = IsLayerNorm(options),
          .num_activations = 2 * kept * options.key_dim()};
}

class Rebased : public PolynomialMixer {
 public:
  Rebased(const RebasedOptions& options, const PartContext& context)
      : PolynomialMixer(
            options, context,
            {.weights = {.a0 = 0, .a1 = 0, .a2 = 1},
             .elementwise = options.kernel == "sq_elementwise",
             .make_maps = [&](const PartContext& within) { return MakeMaps(options, within); }}) {}
};

}  // namespace

// An eps that counts, as the first tokens' similarities may lie near 0, where finite differences of
// a quotient are coarse.
MixerVariant RebasedVariant() {
  const auto form = [](std::vector<Assignment> options) {
    options.insert(options.end(), {{"feature_dim", 4}, {"eps", 0.5}});
    return options;
  };
  return MixerVariantOf<RebasedOptions, Rebased>(
      "rebased",
      {form({{"num_heads", 2}}),
       form({{"num_heads", 3}, {"norm_scope", "per_head"}, {"shared_affine", true}}),
       form({{"num_heads", 2}, {"use_beta", false}, {"kernel", "sq_elementwise"}}),
       form({{"num_heads", 2}, {"use_gamma", false}, {"normalize", false}}),
       form({{"num_heads", 2}, {"use_gamma", false}, {"use_beta", false}, {"normalize", false}})});
}

}  // namespace halflife::model
