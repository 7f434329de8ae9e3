// ReBased (Aksenov et al., 2024). The similarity is s^2, where q and k are normalized first:
//
//   q^ = gamma (q - mean) / sqrt(var + 1e-5) + beta
//
// Paper: the mean and the variance are taken over the channels of all heads, and q and k have
// separate gamma and beta with one element per channel. fla: each head is normalized by itself, and
// q, k and all heads share one gamma and beta of feature_dim channels; there are 16 heads and eps
// is 1e-5. For fla's form use norm_scope per_head, shared_affine, num_heads 16 and eps 1e-5.
//
// Parameters: q_feature_map.gamma and .beta, k_feature_map.gamma and .beta (weight and bias of the
// authors' ln_q and ln_k); with shared_affine, feature_map.gamma and .beta as in fla. They have no
// weight decay, like the parameters of every norm. Without beta, gamma cancels in the quotient up
// to eps, so a weight decay would shrink it without limit.
#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>

#include <optional>
#include <vector>

#include "model/mixers/polynomial/polynomial_mixer.h"
#include "model/projections.h"
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

// gamma and beta for q, for k, or shared by both. Either may be absent.
struct Affine {
  Parameter gamma, beta;
};
Affine DeclareAffine(const RebasedOptions& options, const PartContext& context,
                     const std::string& name) {
  const int64_t width = options.shared_affine ? options.feature_dim : options.key_dim();
  Affine affine;
  if (options.use_gamma)
    affine.gamma = DeclareFp32(context, name + ".gamma", {width}, Init::Ones());
  if (options.use_beta) affine.beta = DeclareFp32(context, name + ".beta", {width}, Init::Zeros());
  return affine;
}

// Returns true if gamma and beta have the width of the normalized channels, so that one LayerNorm
// does all.
bool IsLayerNorm(const RebasedOptions& options) {
  return options.normalize && options.use_gamma &&
         (options.norm_scope == "joint") != options.shared_affine;
}

// Returns the layer norm input for q or k.
ops::LayerNormInput NormInput(const Affine& affine, const ops::LinearPart& part) {
  return {.x = part.y,
          .gamma = *affine.gamma,
          .beta = affine.beta.declared() ? *affine.beta : at::Tensor(),
          .x_gradient = part.gradient};
}

// Separate parameters: normalizes q and k over all channels in one pass. Shared parameters:
// normalizes each head, first those of q, then those of k.
QueryKeyMaps::Mapped NormQueriesAndKeys(const RebasedOptions& options, const Affine& of_q,
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

// Computes the forms that LayerNorms does not, in the dtype of the parameters: fp32 (fp64 for fp64
// inputs).
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
    if (IsLayerNorm(options)) return NormQueriesAndKeys(options, of_q, of_k, q, k);
    return {.q = NormAndMove(options, of_q, q.y), .k = NormAndMove(options, of_k, k.y)};
  };
  // Kept for backward: the input of the norm, and the input of a separate product with gamma.
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

MixerVariant RebasedVariant() { return MixerVariantOf<RebasedOptions, Rebased>("rebased"); }

}  // namespace halflife::model
