// LEAP (linear explainable attention in parallel). The weight of a token is the exponential of the
// dot product of two projections of this token, and is the same in every window that contains it:
//
//   l_j = c (f_j . k_j) / n,   G_i = sum over j in W(i) of e^(l_j) u_j / (sum of e^(l_j) + eps).
//
// Token i then gates its pooled row G_i. There are several published forms; `preset` selects one,
// and the table below lists their differences. Parameters are named as in the authors' releases.
// There is no output matrix, so the block's value_init_scale, output_init_scale and inner norm have
// no effect.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "model/mixers/focus/explanation.h"
#include "model/mixers/focus/focus.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/rows/focus_heads.h"
#include "ops/rows/layer_norm.h"
#include "ops/rows/swiglu.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

enum class Gate {
  kVector,        // sigmoid(W x), one gate per channel
  kPooledValues,  // sigmoid(kappa q . G), one gate per head
  kPooledKeys,    // the same with pooled keys in place of G; the payload is [k; v]
};
// The places where a preset may apply dropout.
enum LeapSite : uint32_t { kQuery = 0, kFocus = 1, kValue = 2, kLogit = 3, kPooled = 4 };
constexpr uint32_t Bit(LeapSite site) { return 1u << site; }

struct LeapPreset {
  std::string_view name;
  // Parameter names of the matrices of q, f, k and v. If there is one name, its rows hold all four
  // in this order. With Gate::kVector, q is the input of the gate, and f and k are the authors' q
  // and k.
  std::array<const char*, 4> matrices;
  Gate gate;
  // norm_focus standardises f and k, norm_others q and v. Without norm_focus, log weights are
  // divided by sqrt(n) and `rescale` is not used.
  bool norm_focus, norm_others;
  double norm_eps;
  double rescale;
  bool gate_takes_rescale;  // kappa is c / n; otherwise 1 / sqrt(n)
  bool elu;                 // the weight is elu(l) + 1 instead of e^l
  double eps;
  const char* windows;
  uint32_t dropout_sites;
};

constexpr LeapPreset kLeapPresets[] = {
    {.name = "leap_v011",
     .matrices = {"gate.weight", "Wq.weight", "Wk.weight", "Wv.weight"},
     .gate = Gate::kVector,
     .norm_focus = true,
     .norm_others = false,
     .norm_eps = 0,
     .rescale = 5,
     .gate_takes_rescale = false,
     .elu = false,
     .eps = 0,
     .windows = "doubling",
     .dropout_sites = Bit(kPooled)},
    {.name = "leap_v012",
     .matrices = {"Wq.weight", "Wf1.weight", "Wf2.weight", "Wv.weight"},
     .gate = Gate::kPooledValues,
     .norm_focus = true,
     .norm_others = false,
     .norm_eps = 1e-5,
     .rescale = 5,
     .gate_takes_rescale = false,
     .elu = false,
     .eps = 0,
     .windows = "doubling",
     .dropout_sites = Bit(kFocus) | Bit(kPooled)},
    {.name = "leap_v101",
     .matrices = {"projections.weight"},
     .gate = Gate::kPooledKeys,
     .norm_focus = true,
     .norm_others = true,
     .norm_eps = 1e-5,
     .rescale = 10,
     .gate_takes_rescale = true,
     .elu = false,
     .eps = 1e-5,
     .windows = "cycle",
     .dropout_sites = Bit(kQuery) | Bit(kFocus) | Bit(kValue) | Bit(kLogit)},
    {.name = "leap_latest",
     .matrices = {"projections.weight"},
     .gate = Gate::kPooledKeys,
     .norm_focus = false,
     .norm_others = false,
     .norm_eps = 0,
     .rescale = 0,
     .gate_takes_rescale = false,
     .elu = true,
     .eps = 1e-5,
     .windows = "cycle",
     .dropout_sites = Bit(kQuery) | Bit(kFocus) | Bit(kValue) | Bit(kLogit)}};

struct LeapOptions : OptionsOf<LeapOptions, FocusOptions> {
  LeapOptions() : OptionsOf("leap_v101", PresetNames(kLeapPresets)) {}
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    FocusOptions::Resolve(sizes, problems);
    const LeapPreset& form = PresetOf(kLeapPresets, preset);
    problems.Require(!form.norm_focus || head_dim > 1, "width per head ", head_dim,
                     " has no standard deviation. Use num_heads of at most ", sizes.model_dim / 2,
                     ".");
    problems.Require(rescale == 0 || form.norm_focus, "option rescale is ", rescale, ", but ",
                     preset, " divides by the root of a head's width. Use rescale 0.");
  }
};

class Leap : public Mixer, public Explained {
 public:
  Leap(const LeapOptions& options, const PartContext& context)
      : form_(PresetOf(kLeapPresets, options.preset)),
        dim_(context.model_dim()),
        head_dim_(options.head_dim),
        rescale_(options.rescale > 0 ? options.rescale : form_.rescale),
        dropout_(options.dropout) {
    const bool joined = form_.matrices[1] == nullptr;
    for (const char* name : form_.matrices)
      if (name != nullptr)
        weights_.push_back(DeclareMatrix(context, name,
                                         {.out = joined ? 4 * dim_ : dim_,
                                          .in = dim_,
                                          .parts = EqualParts(joined ? 4 : 1, dim_)}));
    const int64_t payload = form_.gate == Gate::kPooledKeys ? 2 * head_dim_ : head_dim_;
    pool_ = WindowPool({.window = WindowOf(options, form_.windows, context),
                        .eps = form_.eps,
                        .num_heads = options.num_heads,
                        .dim = payload});
  }

  MixerTraits traits() const override {
    return {.replays_documents = false, .state = pool_.state("")};
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const Tokens tokens = Project(call.x, call.drop);
    MixerOutput result;
    const at::Tensor pooled = pool_.Forward(tokens.leaves.log_weight, tokens.leaves.payload, call,
                                            call.want_state ? &result.state : nullptr);
    result.y = Gated(tokens, Drop(call.drop, kPooled, pooled));
    return result;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice&, MixerState& state) const override {
    const Tokens tokens = Project(x.unsqueeze(1), {});
    const at::Tensor pooled =
        pool_.Step(tokens.leaves.log_weight.squeeze(1), tokens.leaves.payload.squeeze(1), state);
    return Gated(tokens, pooled.unsqueeze(1)).squeeze(1);
  }

  std::vector<Explanation> Explain(const MixerCall& call) const override {
    const c10::AutoGradMode no_grad(false);
    const Tokens tokens = Project(call.x, {});
    const at::Tensor& log_weight = tokens.leaves.log_weight;
    const at::Tensor pooled = pool_.Forward(log_weight, tokens.leaves.payload, call, nullptr);
    Explanation explanation =
        ExplainPool(log_weight, call.slice, pool_.shape().window, pool_.shape().eps);
    explanation.gate = GateOf(tokens.query, pooled);
    return {explanation};
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const auto dim = static_cast<double>(dim_),
               payload = static_cast<double>(pool_.shape().num_heads * pool_.shape().dim);
    // The dot product of the log weight, then sums of suffixes, of prefixes and of both.
    return {.matmul = 8 * dim * dim, .mixing = 2 * dim + 6 * payload};
  }
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    const auto dim = static_cast<double>(dim_),
               heads = static_cast<double>(pool_.shape().num_heads),
               payload = heads * static_cast<double>(pool_.shape().dim);
    // x, the four projections, the payload and the pooled rows; in fp32 the log weights, row maxima
    // and row sums.
    return (5 * dim + 2 * payload) * static_cast<double>(bytes_per_element) + 4 * 3 * heads;
  }

 private:
  struct Tokens {
    at::Tensor query;            // [B, T, D]; with Gate::kVector, the logits of the gate
    bool query_is_done = false;  // the query is already standardised
    ops::ColumnSlice query_gradient;
    ops::FocusLeaves leaves;
  };

  bool Drops(const MixerCall::Drop& drop, uint32_t sites) const {
    return drop && dropout_ != 0 && (form_.dropout_sites & sites) != 0;
  }
  at::Tensor Drop(const MixerCall::Drop& drop, LeapSite site, const at::Tensor& x) const {
    if (!Drops(drop, Bit(site))) return x;
    return drop(site, x.dim() == 4 ? x.flatten(2) : x, dropout_).reshape(x.sizes());
  }

  // Returns the projections q, f, k and v.
  std::vector<ops::LinearPart> Parts(const at::Tensor& x) const {
    if (weights_.size() == 1)
      return ops::LinearInColumns(x, *weights_[0], {dim_, dim_, dim_, dim_});
    std::vector<at::Tensor> matrices;
    for (const Parameter& weight : weights_) matrices.push_back(*weight);
    return ops::SharedInputParts(x, matrices);
  }

  Tokens Project(const at::Tensor& x, const MixerCall::Drop& drop) const {
    const std::vector<ops::LinearPart> y = Parts(x);
    constexpr uint32_t kBeforePool = Bit(kQuery) | Bit(kFocus) | Bit(kValue) | Bit(kLogit);
    if (Drops(drop, kBeforePool)) return Dropped(y, drop);
    return {.query = y[0].y,
            .query_gradient = y[0].gradient,
            .leaves = ops::MakeFocusLeaves({.x = y[2].y,
                                            .direction = y[1].y,
                                            .value = y[3].y,
                                            .x_gradient = y[2].gradient,
                                            .direction_gradient = y[1].gradient,
                                            .value_gradient = y[3].gradient},
                                           {.head_dim = head_dim_,
                                            .norm = form_.norm_focus,
                                            .norm_value = form_.norm_others,
                                            .pool_x = form_.gate == Gate::kPooledKeys,
                                            .eps = form_.norm_eps,
                                            .scale = Scale(form_.norm_focus),
                                            .elu = form_.elu})};
  }

  // Project with dropout between the operations that MakeFocusLeaves fuses.
  Tokens Dropped(const std::vector<ops::LinearPart>& y, const MixerCall::Drop& drop) const {
    const at::ScalarType dtype = y[0].y.scalar_type(), wide = ops::ComputeType(y[0].y);
    const auto heads = [&](int index, bool norm) {
      const at::Tensor split = SplitHeads(y[index].y, head_dim_);
      return norm ? ops::RealNorm(split, form_.norm_eps) : split;
    };
    const at::Tensor k = heads(2, form_.norm_focus);
    const at::Tensor f = Drop(drop, kFocus, heads(1, form_.norm_focus));
    const at::Tensor v = Drop(drop, kValue, heads(3, form_.norm_others)).to(dtype);
    at::Tensor logit = (f.to(wide) * k.to(wide)).sum(-1) * Scale(form_.norm_focus);
    logit = Drop(drop, kLogit, logit);
    const at::Tensor query = Drop(drop, kQuery, heads(0, form_.norm_others));
    return {
        .query = query.flatten(2).to(dtype),
        .query_is_done = true,
        .query_gradient = {},
        .leaves = {.log_weight = form_.elu ? ops::LogOfEluPlusOne(logit) : logit,
                   .payload = form_.gate == Gate::kPooledKeys ? at::cat({k.to(dtype), v}, -1) : v}};
  }
  // Returns the factor on a dot product of two heads: c / n, or 1 / sqrt(n).
  double Scale(bool rescaled) const {
    const auto width = static_cast<double>(head_dim_);
    return rescaled ? rescale_ / width : 1 / std::sqrt(width);
  }

  // Returns the gate that Gated applies, [B, T, H, n or 1] fp32. `query` is not yet standardised.
  at::Tensor GateOf(const at::Tensor& query, const at::Tensor& pooled) const {
    const at::Tensor heads = SplitHeads(query, head_dim_);
    const at::ScalarType wide = ops::ComputeType(query);
    if (form_.gate == Gate::kVector) return at::sigmoid(heads.to(wide));
    const at::Tensor q = form_.norm_others ? ops::RealNorm(heads, form_.norm_eps) : heads.to(wide);
    const at::Tensor seen =
        pooled.narrow(-1, 0, head_dim_).to(wide);  // values, or the keys of [k; v]
    return at::sigmoid((q * seen).sum(-1, /*keepdim=*/true) * Scale(form_.gate_takes_rescale));
  }
  // Returns the gated pooled rows, [B, T, D].
  at::Tensor Gated(const Tokens& tokens, const at::Tensor& pooled) const {
    if (form_.gate == Gate::kVector)
      return ops::Glu(tokens.query, pooled.flatten(2), tokens.query_gradient);
    return ops::FocusGate(
        {.query = tokens.query, .pooled = pooled, .query_gradient = tokens.query_gradient},
        {.norm = form_.norm_others && !tokens.query_is_done,
         .eps = form_.norm_eps,
         .scale = Scale(form_.gate_takes_rescale)});
  }

  LeapPreset form_;
  int64_t dim_, head_dim_;
  double rescale_, dropout_;
  std::vector<Parameter> weights_;
  WindowPool pool_;
};

}  // namespace

MixerVariant LeapVariant() { return MixerVariantOf<LeapOptions, Leap>("leap"); }

}  // namespace halflife::model
