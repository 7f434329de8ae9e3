// D2D, linear attention with trainable decay ("Disentangle to Decay", COLING 2025). The weights are
// the sums over channels of phi(q_i) phi(k_j) gamma^(i-j), normalised. gamma = exp(Pb_h - s Ps_c)
// has a fixed base Pb per head and a trained part Ps per channel. The paper's baselines are the
// other values of `decay` (alibi, trained_alibi, none) with rotary or learned positions.
// `legacy_view` reproduces the public training code (legacy_view.h).
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/exp2.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "model/mixers/linear/decay_recurrence.h"
#include "model/mixers/linear/legacy_view.h"
#include "model/mixers/linear/linear_mixer.h"
#include "ops/rows/decay_gates.h"

namespace halflife::model {
namespace {

constexpr int64_t kUsualHeadDim = 64;

struct D2dOptions : OptionsOf<D2dOptions, LinearHeadOptions> {
  std::string feature_map = "elu";
  std::string decay = "d2d";
  double decay_scale = 0;  // s; 0: 1 for elu, 0.02 for exp
  double max_log_decay = std::numeric_limits<double>::infinity();
  bool regularise_decay = true;  // whether weight decay applies to the trained decay
  double rope_theta = 0;         // rotates q and k, but not in the denominator; 0: none
  double eps = 0;                // added to the denominator; 0: 1e-30 with a decay, else 1e-14
  bool bias = true;
  // o_proj is initialised with a factor 1 / sqrt(2 num_layers), unless the block sets a factor.
  bool scale_init_by_depth = true;
  int64_t legacy_view = 0;  // row length of the public training code; 0: use the formula

  D2dOptions() : OptionsOf(/*heads=*/0, /*k=*/1, /*v=*/1) {}  // 0 heads: model_dim / 64
  std::vector<Option> Fields() override {
    return {{"num_heads", &num_heads, {.min = 0}},
            {"feature_map", &feature_map, {.choices = {"elu", "exp"}}},
            {"decay", &decay, {.choices = {"d2d", "alibi", "trained_alibi", "none"}}},
            {"decay_scale", &decay_scale},
            {"max_log_decay", &max_log_decay},
            {"regularise_decay", &regularise_decay},
            {"rope_theta", &rope_theta},
            {"eps", &eps},
            {"bias", &bias},
            {"scale_init_by_depth", &scale_init_by_depth},
            {"legacy_view", &legacy_view, {.min = 0}}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    if (num_heads == 0) num_heads = std::max<int64_t>(1, sizes.model_dim / kUsualHeadDim);
    LinearHeadOptions::Resolve(sizes, problems);
    if (decay_scale == 0) decay_scale = feature_map == "exp" ? 0.02 : 1;
    if (eps == 0) eps = decay == "none" ? 1e-14 : 1e-30;
    problems.Require(decay_scale > 0, "option decay_scale is ", decay_scale,
                     ". Use a number above 0.");
    problems.Require(eps > 0, "option eps is ", eps, ". Use a number above 0.");
    problems.Require(rope_theta == 0 || rope_theta > 1, "option rope_theta is ", rope_theta,
                     ". Use 0, or a number above 1.");
    problems.Require(rope_theta == 0 || decay == "none", "rope_theta with the decay ", decay,
                     ". Use decay none.");
    problems.Require(rope_theta == 0 || head_dim_k % 2 == 0, "width per head ", head_dim_k,
                     " must be even, because the rotation pairs channels.");
    problems.Require(max_log_decay >= 0 || decay == "d2d" || decay == "trained_alibi",
                     "max_log_decay ", max_log_decay, " with the decay ", decay,
                     ", which is not trained and so not bounded. Use decay d2d or trained_alibi, "
                     "or no max_log_decay.");
    if (legacy_view > 0) RequireViewed(problems);
  }
  void RequireViewed(ProblemList& problems) const {
    problems.Require(decay == "d2d" && feature_map == "elu", "legacy_view ", legacy_view,
                     " with the decay ", decay, " and the feature map ", feature_map,
                     ": public code has such a view only for decay d2d with elu, and computes all "
                     "else by the formula. Use legacy_view 0.");
    problems.Require(
        !std::isfinite(max_log_decay), "legacy_view ", legacy_view, " with max_log_decay ",
        max_log_decay,
        ": a view has no decay per token that could be bounded. Use legacy_view 0, or no "
        "max_log_decay.");
  }
};

// Pb = -2^(-H/h) for the heads h = 1 to H, computed in fp64 and rounded to fp32; [H]. It is
// computed on the device that uses it: a host tensor would be copied in every layer of every step.
at::Tensor BaseLogDecay(int64_t num_heads, at::Device device) {
  const at::Tensor head =
      at::arange(1, num_heads + 1, at::TensorOptions(device).dtype(at::kDouble));
  return (-at::exp2(-num_heads / head)).to(at::kFloat);
}

// A fixed decay per head, [H]: the form of ALiBi with the bases of D2D.
class BaseDecay : public LogDecay {
 public:
  explicit BaseDecay(int64_t num_heads) : num_heads_(num_heads) {}
  at::Tensor operator()(const at::Tensor& x, std::span<const ops::LinearPart>) const override {
    return BaseLogDecay(num_heads_, x.device());
  }
  bool constant() const override { return true; }

 private:
  int64_t num_heads_;
};

// Declares Ps [1, H K], or head_gamma [H] for a decay with one number per head.
Parameter DeclareTrained(const D2dOptions& options, const PartContext& context) {
  dist::ParamSpec spec = {.name = context.prefix + "head_gamma", .shape = {options.num_heads}};
  if (options.decay == "d2d")
    spec.name = context.prefix + "Ps", spec.shape = {1, options.heads().q_dim()};
  spec.region = dist::Region::kFp32;
  spec.weight_decay = options.regularise_decay;
  return context.parameters->Declare(spec, Init::Zeros());
}

// Pb, with Ps applied to q and k as in the public training code.
class ViewedDecay : public BaseDecay {
 public:
  ViewedDecay(const D2dOptions& options, const PartContext& context)
      : BaseDecay(options.num_heads),
        width_(options.heads().q_dim()),
        view_{.num_heads = options.num_heads,
              .row_len = options.legacy_view,
              .scale = options.decay_scale},
        trained_(DeclareTrained(options, context)) {}
  QueriesAndKeys AtPositions(const QueriesAndKeys& features,
                             const SequenceSlice& slice) const override {
    const int64_t num_tokens = slice.begin + slice.seq_len;
    HL_CHECK_AS(ExitCode::kUsage, num_tokens <= view_.row_len, "mixer d2d has the legacy_view ",
                view_.row_len, ", the longest row, and the row has ", num_tokens,
                " tokens. Use shorter texts.");
    return ApplyLegacyView(features, *trained_, slice.positions, view_);
  }
  int64_t max_tokens() const override { return view_.row_len; }
  int64_t num_activations() const override { return 2 * width_; }  // q and k before

 private:
  int64_t width_;
  LegacyView view_;
  Parameter trained_;
};

// Pb_h - s Ps [H, K]; or one trained number per head [H], which is Pb = 0 and s = -1.
class TrainedDecay : public LogDecay {
 public:
  TrainedDecay(const D2dOptions& options, const PartContext& context)
      : per_channel_(options.decay == "d2d"),
        num_heads_(options.num_heads),
        scale_(options.decay_scale),
        max_(options.max_log_decay),
        trained_(DeclareTrained(options, context)) {}
  at::Tensor operator()(const at::Tensor&, std::span<const ops::LinearPart>) const override {
    if (per_channel_)
      return ops::HeadOffsetDecay(*trained_, num_heads_, {.scale = scale_, .most = max_});
    return std::isfinite(max_) ? trained_->clamp_max(max_) : *trained_;
  }
  bool constant() const override { return true; }
  bool per_channel() const override { return per_channel_; }

 private:
  bool per_channel_;
  int64_t num_heads_;
  double scale_, max_;
  Parameter trained_;
};

DecayForm MakeDecayForm(const D2dOptions& options) {
  DecayForm form = {
      .rope_theta = options.rope_theta,
      .normaliser = options.rope_theta > 0 ? Normaliser::kUnrotatedKeys : Normaliser::kKeys,
      .normaliser_eps = options.eps,
      .scale_queries = false};
  if (options.decay == "alibi") {
    form.make_decay = [=](const PartContext&) {
      return std::make_unique<BaseDecay>(options.num_heads);
    };
  } else if (options.legacy_view > 0) {
    form.make_decay = [=](const PartContext& context) {
      return std::make_unique<ViewedDecay>(options, context);
    };
  } else if (options.decay != "none") {
    form.make_decay = [=](const PartContext& context) {
      return std::make_unique<TrainedDecay>(options, context);
    };
    form.allow_growth = !(options.max_log_decay <= 0);
  }
  return form;
}

LinearForm MakeD2dForm(const D2dOptions& options) {
  return {.bias = options.bias,
          .make_map_q =
              [=](const PartContext& context) {
                return MakeFeatureMap(options.feature_map, context, options.head_dim_k);
              },
          .make_recurrence = MakeDecayRecurrence(MakeDecayForm(options)),
          .output_gate = OutputGate::kNone};
}

// Scales the initial output matrix by 1 / sqrt(2 L) if `by_depth`. A scale that the block has set
// is left unchanged.
PartContext WithOutputScale(PartContext context, bool by_depth) {
  if (by_depth && context.output_init_scale == 1)
    context.output_init_scale /= std::sqrt(2.0 * static_cast<double>(context.sizes.num_layers));
  return context;
}

class D2d : public LinearMixer {
 public:
  D2d(const D2dOptions& options, const PartContext& context)
      : LinearMixer(options.heads(), WithOutputScale(context, options.scale_init_by_depth),
                    MakeD2dForm(options)) {}
};

}  // namespace

MixerVariant D2dVariant() { return MixerVariantOf<D2dOptions, D2d>("d2d"); }

}  // namespace halflife::model
