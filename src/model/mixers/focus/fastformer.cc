// Causal Fastformer, an additive attention (after Wu et al., 2021). A learned vector weights the
// queries, which are pooled over a window. The pooled query multiplies each key. These products are
// pooled in the same way, and the pooled key multiplies each value:
//
//   Q = pool(q; a),  m = Q * k,  K = pool(m; b),  y = K * v,
//   pool(x; a)_i = sum over j in W(i) of e^(l_j) x_j / (sum of e^(l_j) + eps),
//   l_j = c (x_j . a) / n,
//
// where x and a are standardised per head, also as the payload x of the pool. A token sees
// 2 (window - 1) earlier tokens per layer. There are several published forms; `preset` selects one.
// There is no output matrix, so the block's value_init_scale, output_init_scale and inner norm have
// no effect.
#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <c10/core/GradMode.h>

#include <array>
#include <cmath>
#include <string_view>

#include "model/mixers/focus/explanation.h"
#include "model/mixers/focus/focus.h"
#include "ops/linear/linear.h"
#include "ops/rows/focus_heads.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

constexpr double kMixNormEps = 1e-5;
enum FastformerSite : uint32_t { kPooledQuery = 0, kPooledKey = 1 };

struct FastformerPreset {
  std::string_view name;
  // Parameter names of the matrices of q, k, v and the pooled query. If there is one name, its rows
  // hold q, k and v in this order.
  std::array<const char*, 4> matrices;
  // There is no q and k: a single pool of x multiplies v.
  bool additive;
  // Standardises the pooled tensors and the learned vectors. The vectors then start from a normal
  // distribution, else from zeros.
  bool norm;
  double rescale;  // c, with `norm`; without it, log weights are divided by sqrt(n)
  double eps;
  // y = m + K * v with K = pool(LN(x + m)): the first product is added to the input of the second
  // pool and to the output.
  bool inner_residual;
  const char* windows;
};
constexpr FastformerPreset kFastformerPresets[] = {
    // Log weights are divided by sqrt(D) for any number of heads.
    {.name = "additive_readme",
     .matrices = {"Wvalues.weight"},
     .additive = true,
     .norm = false,
     .rescale = 0,
     .eps = 0,
     .inner_residual = false,
     .windows = "doubling"},
    // Its layer is norm(x) + y, which is a block with mixer_residual_post_norm.
    {.name = "fastformer_seed",
     .matrices = {"Wquery.weight", "Wkeys.weight", "Wvalues.weight", "Wpooled.weight"},
     .additive = false,
     .norm = false,
     .rescale = 0,
     .eps = 0,
     .inner_residual = true,
     .windows = "doubling"},
    {.name = "fastformer_v011",
     .matrices = {"Wquery.weight", "Wkeys.weight", "Wvalues.weight"},
     .additive = false,
     .norm = true,
     .rescale = 5,
     .eps = 0,
     .inner_residual = false,
     .windows = "doubling"},
    {.name = "fastformer_latest",
     .matrices = {"projections.weight"},
     .additive = false,
     .norm = true,
     .rescale = 15,
     .eps = 1e-5,
     .inner_residual = false,
     .windows = "doubling_between"}};
constexpr double kNormEps = 1e-5;  // eps of the standardisation

struct FastformerOptions : OptionsOf<FastformerOptions, FocusOptions> {
  FastformerOptions() : OptionsOf("fastformer_latest", PresetNames(kFastformerPresets)) {}
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    FocusOptions::Resolve(sizes, problems);
    const bool norm = PresetOf(kFastformerPresets, preset).norm;
    problems.Require(!norm || head_dim > 1, "width per head ", head_dim,
                     " has no standard deviation. Use num_heads of at most ", sizes.model_dim / 2,
                     ".");
    problems.Require(rescale == 0 || norm, "option rescale is ", rescale, ", but ", preset,
                     " divides by the root of a width. Use rescale 0.");
  }
};

class Fastformer : public Mixer, public Explained {
 public:
  Fastformer(const FastformerOptions& options, const PartContext& context)
      : form_(PresetOf(kFastformerPresets, options.preset)),
        dim_(context.model_dim()),
        num_heads_(options.num_heads),
        head_dim_(options.head_dim),
        rescale_(options.rescale > 0 ? options.rescale : form_.rescale),
        dropout_(options.dropout) {
    const bool joined = !form_.additive && form_.matrices[1] == nullptr;
    for (const char* name : form_.matrices)
      if (name != nullptr)
        weights_.push_back(DeclareMatrix(context, name,
                                         {.out = joined ? 3 * dim_ : dim_,
                                          .in = dim_,
                                          .parts = EqualParts(joined ? 3 : 1, dim_)}));
    query_ = DeclareVector(context, "query_attn");
    if (!form_.additive) key_ = DeclareVector(context, "key_attn");
    if (form_.inner_residual) {
      norm_ = DeclareNorm(context, "mix_norm.weight", dim_);
      norm_bias_ = DeclareFp32(context, "mix_norm.bias", {dim_}, Init::Zeros());
    }
    const int64_t window = WindowOf(options, form_.windows, context);
    const auto pool = [&](size_t first) {
      return WindowPool({.window = window,
                         .eps = form_.eps,
                         .num_heads = num_heads_,
                         .dim = head_dim_,
                         .first_state = first});
    };
    pools_[0] = pool(0);
    pools_[1] = pool(pools_[0].state("").size());
  }

  MixerTraits traits() const override {
    MixerTraits traits = {.replays_documents = false, .state = pools_[0].state("query_")};
    if (form_.additive) return traits;
    for (const StateTensor& tensor : pools_[1].state("key_")) traits.state.push_back(tensor);
    return traits;
  }

  MixerOutput Forward(const MixerCall& call) const override {
    MixerOutput result;
    MixerState* const after = call.want_state ? &result.state : nullptr;
    const auto pool = [&](int index, const ops::FocusLeaves& leaves) {
      const at::Tensor y =
          pools_[index].Forward(leaves.log_weight, leaves.payload, call, after).flatten(2);
      if (!call.drop || dropout_ == 0) return y;
      return call.drop(index == 0 ? kPooledQuery : kPooledKey, y, dropout_);
    };
    result.y = Mix(call.x, pool);
    return result;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice&, MixerState& state) const override {
    const auto pool = [&](int index, const ops::FocusLeaves& leaves) {
      return pools_[index]
          .Step(leaves.log_weight.squeeze(1), leaves.payload.squeeze(1), state)
          .flatten(1)
          .unsqueeze(1);
    };
    return Mix(x.unsqueeze(1), pool).squeeze(1);
  }

  std::vector<Explanation> Explain(const MixerCall& call) const override {
    const c10::AutoGradMode no_grad(false);
    std::vector<Explanation> explanations;
    Mix(call.x, [&](int index, const ops::FocusLeaves& leaves) {
      const WindowPool& pool = pools_[index];
      explanations.push_back(
          ExplainPool(leaves.log_weight, call.slice, pool.shape().window, pool.shape().eps));
      return pool.Forward(leaves.log_weight, leaves.payload, call, nullptr).flatten(2);
    });
    return explanations;
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const auto dim = static_cast<double>(dim_);
    const double pools = form_.additive ? 1 : 2;
    // Each pool: the dot product of the log weight, then sums of suffixes, of prefixes and of both.
    return {.matmul = 2 * dim * dim * num_square_matrices(), .mixing = pools * 9 * dim};
  }
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    const auto dim = static_cast<double>(dim_), heads = static_cast<double>(num_heads_);
    const double pools = form_.additive ? 1 : 2;
    // x, the projections, the payload and the rows of each pool, and products; in fp32 the log
    // weights, row maxima and row sums.
    const double elements = 1 + num_square_matrices() + 2 * pools + (form_.inner_residual ? 4 : 1);
    return elements * dim * static_cast<double>(bytes_per_element) + 4 * pools * 3 * heads;
  }

 private:
  double num_square_matrices() const { return form_.additive ? 1 : form_.inner_residual ? 4 : 3; }

  // [H, n] with `norm`; else [D] zeros, which initially give all tokens the same weight.
  Parameter DeclareVector(const PartContext& context, const std::string& name) const {
    std::vector<int64_t> shape = {dim_};
    if (form_.norm) shape = {num_heads_, head_dim_};
    return DeclareFp32(context, name, shape,
                       form_.norm ? Init::Normal(context.initializer_range) : Init::Zeros());
  }

  // Returns the log weights and the payload of a pool of x [B, T, D], or of x times `times`.
  ops::FocusLeaves Weigh(const at::Tensor& x, const Parameter& vector,
                         const at::Tensor& times = {}) const {
    const auto width = static_cast<double>(form_.additive ? dim_ : head_dim_);
    return ops::MakeFocusLeaves({.x = x, .times = times, .direction = *vector},
                                {.head_dim = head_dim_,
                                 .norm = form_.norm,
                                 .eps = kNormEps,
                                 .scale = form_.norm ? rescale_ / width : 1 / std::sqrt(width)});
  }

  // Returns the projections q, k and v.
  std::vector<ops::LinearPart> Parts(const at::Tensor& x) const {
    if (weights_.size() == 1) return ops::LinearInColumns(x, *weights_[0], {dim_, dim_, dim_});
    return ops::SharedInputParts(x, {*weights_[0], *weights_[1], *weights_[2]});
  }

  // x [B, T, D] -> [B, T, D]; pool(index, leaves) -> [B, T, D].
  template <typename Pool>
  at::Tensor Mix(const at::Tensor& x, const Pool& pool) const {
    if (form_.additive) return pool(0, Weigh(x, query_)) * ops::Linear(x, *weights_[0]);
    const std::vector<ops::LinearPart> y = Parts(x);
    at::Tensor query = pool(0, Weigh(y[0].y, query_));
    if (!form_.inner_residual) return pool(1, Weigh(y[1].y, key_, /*times=*/query)) * y[2].y;
    query = ops::Linear(query, *weights_[3]);
    const at::Tensor mixed = query * y[1].y;
    const at::Tensor normed = at::layer_norm((x + mixed).to(ops::ComputeType(x)), {dim_}, *norm_,
                                             *norm_bias_, kMixNormEps)
                                  .to(x.scalar_type());
    return mixed + pool(1, Weigh(normed, key_)) * y[2].y;
  }

  FastformerPreset form_;
  int64_t dim_, num_heads_, head_dim_;
  double rescale_, dropout_;
  std::vector<Parameter> weights_;
  Parameter query_, key_, norm_, norm_bias_;
  std::array<WindowPool, 2> pools_;
};

}  // namespace

MixerVariant FastformerVariant() {
  return MixerVariantOf<FastformerOptions, Fastformer>("fastformer");
}

}  // namespace halflife::model
