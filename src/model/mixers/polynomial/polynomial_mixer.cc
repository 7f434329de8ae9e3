#include "model/mixers/polynomial/polynomial_mixer.h"

#include <cmath>

#include "model/projections.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/linear/linear.h"
#include "ops/polynomial_attention/polynomial_attention.h"

namespace halflife::model {

std::vector<Option> PolynomialOptions::Fields() {
  return {{"num_heads", &num_heads},
          {"feature_dim", &feature_dim, {.max = kernels::kMaxPolynomialDim}},
          {"eps", &eps}};
}

void PolynomialOptions::Resolve(const ModelSizes& sizes, ProblemList& problems) {
  problems.Require(eps > 0, "eps is ", eps, ". Use a number above 0, usually 1e-12.");
  head_dim_v = sizes.model_dim / num_heads;
  problems.Require(head_dim_v >= 1, "num_heads ", num_heads, " above model_dim ", sizes.model_dim,
                   ". Use at most ", sizes.model_dim, ".");
  problems.Require(head_dim_v <= kernels::kMaxPolynomialValues, "values of ", head_dim_v,
                   " channels per head; at most ", kernels::kMaxPolynomialValues,
                   " are supported. Use at least ",
                   sizes.model_dim / (kernels::kMaxPolynomialValues + 1) + 1, " heads.");
}

PolynomialMixer::PolynomialMixer(const PolynomialOptions& options, const PartContext& context,
                                 const PolynomialForm& form)
    : options_(options),
      model_dim_(context.model_dim()),
      weights_(form.weights),
      elementwise_(form.elementwise),
      q_(DeclareMatrix(context, "q_proj.weight",
                       {.out = options.key_dim(),
                        .in = model_dim_,
                        .heads = options.num_heads,
                        .float8 = true})),
      k_(DeclareMatrix(context, "k_proj.weight",
                       {.out = options.key_dim(),
                        .in = model_dim_,
                        .heads = options.num_heads,
                        .float8 = true})),
      v_(DeclareMatrix(context, "v_proj.weight",
                       {.out = options.value_dim(),
                        .in = model_dim_,
                        .init_scale = context.value_init_scale,
                        .heads = options.num_heads,
                        .float8 = true})) {
  if (form.make_maps) maps_ = form.make_maps(context);
  out_ = OutputProjection(context, options.value_dim(), /*bias=*/false);
}

int64_t PolynomialMixer::num_features() const {
  if (elementwise_) return options_.feature_dim;
  return kernels::FeatureLayout(static_cast<int>(options_.feature_dim), weights_).count;
}

MixerTraits PolynomialMixer::traits() const {
  const int64_t heads = options_.num_heads, features = num_features();
  return {.state = {{.name = "kv", .shape = {heads, features, options_.head_dim_v}},
                    {.name = "norm", .shape = {heads, features}}}};
}

PolynomialMixer::Heads PolynomialMixer::Project(const at::Tensor& x) const {
  std::vector<ops::LinearPart> y = ops::SharedInputParts(x, {*q_, *k_, *v_});
  // The gradient places are columns of one matrix, so they are useful only if all three are used.
  if (elementwise_ || (maps_.both && !maps_.takes_places))
    for (ops::LinearPart& part : y) part.gradient = {};
  if (maps_.both) {
    const auto [q, k] = maps_.both(y[0], y[1]);
    y[0] = {.y = q}, y[1] = {.y = k};
  }
  if (elementwise_)
    for (ops::LinearPart* part : {&y[0], &y[1]}) *part = {.y = part->y.square()};
  return {.q = SplitHeads(y[0].y, options_.feature_dim),
          .k = SplitHeads(y[1].y, options_.feature_dim),
          .v = SplitHeads(y[2].y, options_.head_dim_v),
          .q_gradient = y[0].gradient,
          .k_gradient = y[1].gradient,
          .v_gradient = y[2].gradient};
}

MixerOutput PolynomialMixer::Forward(const MixerCall& call) const {
  const Heads heads = Project(call.x);
  const bool carried = call.carried();
  const auto initial = [&](size_t i) { return carried ? call.initial->tensors[i] : at::Tensor(); };
  const auto dim = static_cast<double>(options_.feature_dim);
  MixerOutput result;
  at::Tensor o;
  if (elementwise_) {
    const auto [out, state] = ops::DecayAttention(
        {.q = heads.q,
         .k = heads.k,
         .v = heads.v,
         .chunks = call.slice.chunks,
         .initial_state = {.kv = initial(0), .norm = initial(1)},
         .segment = call.slice.segment},
        {.scale = 1 / dim, .norm = kernels::NormKind::kSumOfKeys, .norm_eps = options_.eps});
    o = out;
    if (call.want_state) result.state.tensors = {state.kv, state.norm};
  } else {
    const auto [out, state, divisors] =
        ops::PolynomialAttention({.q = heads.q,
                                  .k = heads.k,
                                  .v = heads.v,
                                  .chunks = call.slice.chunks,
                                  .initial_state = {.kv = initial(0), .norm = initial(1)},
                                  .segment = call.slice.segment,
                                  .q_gradient = heads.q_gradient,
                                  .k_gradient = heads.k_gradient,
                                  .v_gradient = heads.v_gradient},
                                 {.scale = 1 / std::sqrt(dim),
                                  .weights = weights_,
                                  .norm_eps = options_.eps,
                                  .want_final_state = call.want_state});
    o = out;
    if (call.want_state) result.state.tensors = {state.kv, state.norm};
  }
  result.y = out_(o.flatten(2));
  return result;
}

at::Tensor PolynomialMixer::Step(const at::Tensor& x, const SequenceSlice&,
                                 MixerState& state) const {
  const Heads heads = Project(x);  // [B, H, *]
  const auto dim = static_cast<double>(options_.feature_dim);
  at::Tensor o;
  if (elementwise_) {
    ops::DecayState memory = {.kv = state.tensors[0], .norm = state.tensors[1]};
    o = ops::DecayAttentionStep(
        {.q = heads.q, .k = heads.k, .v = heads.v},
        {.scale = 1 / dim, .norm = kernels::NormKind::kSumOfKeys, .norm_eps = options_.eps},
        memory);
  } else {
    ops::PolynomialState memory = {.kv = state.tensors[0], .norm = state.tensors[1]};
    o = ops::PolynomialAttentionStep(
        {.q = heads.q, .k = heads.k, .v = heads.v},
        {.scale = 1 / std::sqrt(dim), .weights = weights_, .norm_eps = options_.eps}, memory);
  }
  return out_(o.flatten(1));
}

FlopCount PolynomialMixer::FlopsPerToken(int64_t) const {
  const auto dim = static_cast<double>(model_dim_), keys = static_cast<double>(options_.key_dim()),
             values = static_cast<double>(options_.value_dim()),
             heads = static_cast<double>(options_.num_heads),
             features = static_cast<double>(num_features());
  // The state and the normaliser are read and updated.
  return {.matmul = 4 * dim * (keys + values), .mixing = 4 * features * (values + heads)};
}

double PolynomialMixer::ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const {
  // x, q, k, v and the output; one fp32 normaliser per head; with `elementwise` also the squares of
  // q and k.
  const int64_t keys = options_.key_dim() * (elementwise_ ? 4 : 2);
  const int64_t elements = model_dim_ + keys + 2 * options_.value_dim();
  return static_cast<double>(elements * bytes_per_element) +
         4 * static_cast<double>(options_.num_heads + maps_.num_activations);
}

namespace {

// The linear attention of Based (Arora et al., 2024). The similarity is the second-order Taylor
// polynomial of exp(s), kappa(s) = 1 + s + s^2 / 2, which is never below 1/2.
struct BasedOptions : OptionsOf<BasedOptions, PolynomialOptions> {};

class Based : public PolynomialMixer {
 public:
  Based(const BasedOptions& options, const PartContext& context)
      : PolynomialMixer(options, context, {.weights = {.a0 = 1, .a1 = 1, .a2 = 0.5}}) {}
};

}  // namespace

MixerVariant BasedVariant() { return MixerVariantOf<BasedOptions, Based>("based"); }

}  // namespace halflife::model
