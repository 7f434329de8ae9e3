// LEAP (linear explainable attention in parallel): a token's weight in every window that holds it
// is the exponential of the dot of two projections of the token itself,
//
//   l_j = c (f_j . k_j) / n,   G_i = sum over j in W(i) of e^(l_j) u_j / (sum of e^(l_j) + eps),
//
// and the token gates what it finds. Published in several forms; `preset` names one, and the table
// below says in what they differ. Parameters are named as the authors' releases name them. None has
// an output matrix, so the block's initial sizes of values and outputs, and sub-LN's inner norm,
// have nothing to act upon.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "kernels/linear/linear.h"
#include "kernels/real_norm/real_norm.h"
#include "kernels/torch/dispatch.h"
#include "model/mixers/focus/explanation.h"
#include "model/mixers/focus/focus.h"

namespace halflife::model {
namespace {

enum class Gate {
  kVector,        // sigmoid(W x) on each channel
  kPooledValues,  // sigmoid(kappa q . G) per head
  kPooledKeys,    // the same with the pooled keys: the payload is [k; v]
};
// A place where dropout may stand.
enum LeapSite : uint32_t { kQuery = 0, kFocus = 1, kValue = 2, kLogit = 3, kPooled = 4 };
constexpr uint32_t Bit(LeapSite site) { return 1u << site; }

struct LeapPreset {
  std::string_view name;
  // Names of the matrices of q, f, k and v; one name: all four in its rows, in this order. With a
  // gate of all channels q is the gate's, f and k are what the authors call q and k.
  std::array<const char*, 4> matrices;
  Gate gate;
  // Standardised: f and k; q and v too. Without, log weights and gates divide by sqrt(n) and
  // `rescale` is not read.
  bool norm_focus, norm_others;
  double norm_eps;
  double rescale;
  bool gate_takes_rescale;  // kappa is c / n, else 1 / sqrt(n)
  bool elu;                 // the weight is elu(l) + 1 in place of e^l
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
                     " has no standard deviation; num_heads up to ", sizes.model_dim / 2,
                     " would work");
    problems.Require(rescale == 0 || form.norm_focus, "option rescale is ", rescale, ", but ",
                     preset, " divides by the root of a head's width; 0 would work");
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
        weights_.push_back(
            DeclareMatrix(context, name, {.out = joined ? 4 * dim_ : dim_, .in = dim_}));
    const int64_t payload = form_.gate == Gate::kPooledKeys ? 2 * head_dim_ : head_dim_;
    pool_ = WindowPool({.window = WindowOf(options, form_.windows, context),
                        .eps = form_.eps,
                        .num_heads = options.num_heads,
                        .dim = payload});
  }

  MixerTraits traits() const override { return {.state = pool_.state("")}; }

  MixerOutput Forward(const MixerCall& call) const override {
    const Heads heads = Project(call.x, call.drop);
    MixerOutput result;
    const at::Tensor pooled = pool_.Forward(heads.log_weight, heads.payload, call,
                                            call.want_state ? &result.state : nullptr);
    result.y = Gated(heads.query, pooled, call.drop);
    return result;
  }

  at::Tensor Step(const at::Tensor& x, int64_t, MixerState& state) const override {
    const Heads heads = Project(x.unsqueeze(1), {});
    const at::Tensor pooled =
        pool_.Step(heads.log_weight.squeeze(1), heads.payload.squeeze(1), state);
    return Gated(heads.query, pooled.unsqueeze(1), {}).squeeze(1);
  }

  std::vector<Explanation> Explain(const MixerCall& call) const override {
    const c10::AutoGradMode no_grad(false);
    const Heads heads = Project(call.x, {});
    const at::Tensor pooled = pool_.Forward(heads.log_weight, heads.payload, call, nullptr);
    Explanation explanation =
        ExplainPool(heads.log_weight, call.slice, pool_.shape().window, pool_.shape().eps);
    explanation.gate = GateOf(heads.query, pooled);
    return {explanation};
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const auto dim = static_cast<double>(dim_),
               payload = static_cast<double>(pool_.shape().num_heads * pool_.shape().dim);
    // the log weight's dot, and sums of the payload by suffixes, by prefixes and of the two
    return {.matmul = 8 * dim * dim, .mixing = 2 * dim + 6 * payload};
  }
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    const auto dim = static_cast<double>(dim_),
               heads = static_cast<double>(pool_.shape().num_heads),
               payload = heads * static_cast<double>(pool_.shape().dim);
    // x, the four projections, payload and pooled rows; in fp32 what is standardised, and log
    // weights, row maxima and sums
    const double normed = (form_.norm_focus ? 2 : 0) + (form_.norm_others ? 2 : 0);
    return (5 * dim + 2 * payload) * static_cast<double>(bytes_per_element) +
           4 * (normed * (dim + 2 * heads) + 3 * heads);
  }

 private:
  struct Heads {
    at::Tensor query;       // [B, T, H, n], or of a gate of all channels its logits
    at::Tensor log_weight;  // [B, T, H] fp32
    at::Tensor payload;     // [B, T, H, P]
  };

  at::Tensor Drop(const MixerCall::Drop& drop, LeapSite site, const at::Tensor& x) const {
    if (!drop || dropout_ == 0 || (form_.dropout_sites & Bit(site)) == 0) return x;
    return drop(site, x.dim() == 4 ? x.flatten(2) : x, dropout_).reshape(x.sizes());
  }

  Heads Project(const at::Tensor& x, const MixerCall::Drop& drop) const {
    std::vector<at::Tensor> matrices;
    for (const Parameter& weight : weights_) matrices.push_back(*weight);
    std::vector<at::Tensor> y = kernels::SharedInputLinear(x, matrices);
    if (y.size() == 1) y = y[0].chunk(4, -1);
    const auto heads = [&](int index, bool norm) {
      const at::Tensor split = SplitHeads(y[index], head_dim_);
      return norm ? kernels::RealNorm(split, form_.norm_eps) : split;
    };
    const at::ScalarType wide = kernels::ComputeType(x);
    const at::Tensor k = heads(2, form_.norm_focus);
    const at::Tensor f = Drop(drop, kFocus, heads(1, form_.norm_focus));
    const at::Tensor v = Drop(drop, kValue, heads(3, form_.norm_others)).to(x.scalar_type());
    at::Tensor logit = (f.to(wide) * k.to(wide)).sum(-1) * Scale(form_.norm_focus);
    logit = Drop(drop, kLogit, logit);
    return {
        .query = Drop(drop, kQuery, heads(0, form_.norm_others)),
        .log_weight = form_.elu ? LogOfEluPlusOne(logit) : logit,
        .payload = form_.gate == Gate::kPooledKeys ? at::cat({k.to(x.scalar_type()), v}, -1) : v};
  }
  // On a dot of two heads: c / n, or 1 / sqrt(n).
  double Scale(bool rescaled) const {
    const auto width = static_cast<double>(head_dim_);
    return rescaled ? rescale_ / width : 1 / std::sqrt(width);
  }
  // ln(elu(l) + 1) = l below 0, ln(1 + l) above: 1 + expm1(l) would round to 0 from -17 on.
  static at::Tensor LogOfEluPlusOne(const at::Tensor& l) {
    return at::where(l > 0, at::log1p(l.clamp_min(0)), l);
  }

  // query and pooled [B, T, H, *] -> [B, T, H, n or 1], fp32.
  at::Tensor GateOf(const at::Tensor& query, const at::Tensor& pooled) const {
    const at::ScalarType wide = kernels::ComputeType(query);
    if (form_.gate == Gate::kVector) return at::sigmoid(query.to(wide));
    const at::Tensor seen =
        pooled.narrow(-1, 0, head_dim_).to(wide);  // values, or keys before them
    const at::Tensor dot = (query.to(wide) * seen).sum(-1, /*keepdim=*/true);
    return at::sigmoid(dot * Scale(form_.gate_takes_rescale));
  }
  // -> [B, T, D].
  at::Tensor Gated(const at::Tensor& query, const at::Tensor& pooled_in,
                   const MixerCall::Drop& drop) const {
    const at::Tensor pooled = Drop(drop, kPooled, pooled_in);
    const at::Tensor values =
        pooled.narrow(-1, form_.gate == Gate::kPooledKeys ? head_dim_ : 0, head_dim_);
    const at::Tensor gate = GateOf(query, pooled);
    return (gate * values.to(gate.scalar_type())).flatten(2).to(pooled_in.scalar_type());
  }

  LeapPreset form_;
  int64_t dim_, head_dim_;
  double rescale_, dropout_;
  std::vector<Parameter> weights_;
  WindowPool pool_;
};

}  // namespace

MixerVariant LeapVariant() {
  const auto form = [](const char* preset, int64_t window) -> std::vector<Assignment> {
    return {{"preset", preset}, {"num_heads", 2}, {"windows", "same"}, {"window", window}};
  };
  return MixerVariantOf<LeapOptions, Leap>("leap", {{{"num_heads", 2}, {"rescale", 2.0}},
                                                    form("leap_v011", 0),
                                                    form("leap_v011", 13),
                                                    form("leap_v012", 3),
                                                    form("leap_latest", 7),
                                                    form("leap_latest", 2)});
}

}  // namespace halflife::model
