// Three mixers whose recurrence is the delta rule with a decay, and which share most options: Gated
// DeltaNet, Gated DeltaProduct and Kimi Delta Attention. Parameters are named as in fla.
#include <algorithm>
#include <cmath>

#include "model/mixers/linear/delta_recurrence.h"
#include "model/mixers/linear/linear_mixer.h"

namespace halflife::model {
namespace {

// The options of all three.
struct GatedDeltaOptions : OptionsOf<GatedDeltaOptions> {
  int64_t num_heads = 4, num_v_heads = 0;  // 0: num_heads
  int64_t head_dim = 0;                    // 0: model_dim / num_heads
  double expand_v = 1;                     // head dim of v, as a factor of head_dim
  bool use_short_conv = true;
  int64_t conv_size = 4;
  bool allow_neg_eigval = false;
  int64_t head_dim_v = 0;  // computed by Resolve

  std::vector<Option> Fields() override;
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override;

  LinearHeads heads() const { return {num_heads, num_heads, num_v_heads, head_dim, head_dim_v}; }
};

std::vector<Option> GatedDeltaOptions::Fields() {
  return {{"num_heads", &num_heads},
          {"num_v_heads", &num_v_heads, {.min = 0}},
          {"head_dim", &head_dim, {.min = 0}},
          {"expand_v", &expand_v},
          {"use_short_conv", &use_short_conv},
          {"conv_size", &conv_size},
          {"allow_neg_eigval", &allow_neg_eigval}};
}

void GatedDeltaOptions::Resolve(const ModelSizes& sizes, ProblemList& problems) {
  if (num_v_heads == 0) num_v_heads = num_heads;
  problems.Require(num_v_heads % num_heads == 0, "num_v_heads ", num_v_heads,
                   " is not a multiple of num_heads ", num_heads, ". Use ", num_heads, " or ",
                   2 * num_heads, ".");
  if (head_dim == 0) {
    problems.Require(sizes.model_dim % num_heads == 0, "num_heads ", num_heads,
                     " must divide model_dim ", sizes.model_dim,
                     ". Set head_dim to use other sizes.");
    head_dim = std::max<int64_t>(sizes.model_dim / num_heads, 1);
  }
  const double width = static_cast<double>(head_dim) * expand_v;
  // expand_v may be a rounded ratio of two widths.
  const bool whole = std::abs(width - std::round(width)) < 1e-9 * width;
  const bool fits = std::round(width) >= 1 && width <= kMaxWidth && whole;
  problems.Require(fits, "head_dim ", head_dim, " times expand_v ", expand_v,
                   " is not a whole number from 1 to ", kMaxWidth, ". Change expand_v.");
  if (!fits) return;
  head_dim_v = std::llround(width);
  const int64_t widest = std::max(num_heads * head_dim, num_v_heads * head_dim_v);
  problems.Require(widest <= kMaxWidth, "num_heads ", num_heads, " and num_v_heads ", num_v_heads,
                   " of head_dim ", head_dim, " and expand_v ", expand_v, " are ", widest,
                   " wide. Use a width of at most ", kMaxWidth, ".");
}

// Returns the form with a short convolution (or only its SiLU) and an output norm called o_norm.
// The mixer sets the gate and the recurrence.
LinearForm MakeGatedDeltaForm(const GatedDeltaOptions& options) {
  LinearForm form = {.recurrence_next_to_projections = true, .norm_name = "o_norm.weight"};
  if (options.use_short_conv) {
    form.conv_size = options.conv_size;
    return form;
  }
  form.make_map_q = [dim = options.head_dim](const PartContext&) {
    return MakeActivationMap("silu", dim);
  };
  form.v_activation = "silu";
  return form;
}

// Gated DeltaNet (Yang et al., 2025): the delta rule with a decay per value head and token,
//
//   S_t = alpha_t (I - beta_t k_t^T k_t) S_{t-1} + beta_t k_t^T v_t,
//   ln alpha_t = -exp(A_log) softplus(W_a x_t + dt_bias),   beta_t = sigmoid(W_b x_t)
//
// with |q_t| = |k_t| = 1 after a short convolution. Several value heads may share one head of q and
// k.
struct GatedDeltaNetOptions : OptionsOf<GatedDeltaNetOptions, GatedDeltaOptions> {
  std::string output_gate = "silu";
  double norm_eps = 0;  // of the norm of each head's output; 0: eps of the model's norm

  std::vector<Option> Fields() override {
    std::vector<Option> fields = GatedDeltaOptions::Fields();
    fields.push_back({"output_gate", &output_gate, {.choices = {"silu", "sigmoid", "none"}}});
    fields.push_back({"norm_eps", &norm_eps});
    return fields;
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    GatedDeltaOptions::Resolve(sizes, problems);
    problems.Require(norm_eps >= 0, "option norm_eps is ", norm_eps,
                     ". Use a number above 0, or 0 for eps of the model's norm.");
  }
};

LinearForm MakeGatedDeltaNetForm(const GatedDeltaNetOptions& options) {
  LinearForm form = MakeGatedDeltaForm(options);
  form.output_gate = options.output_gate == "silu"      ? OutputGate::kSilu
                     : options.output_gate == "sigmoid" ? OutputGate::kSigmoid
                                                        : OutputGate::kNone;
  form.norm_eps = options.norm_eps;
  form.make_recurrence = MakeDeltaRecurrence(
      {.beta_scale = options.allow_neg_eigval ? 2.0 : 1.0,
       .decay = SoftplusDecayForm{.num_heads = options.num_v_heads, .initial_min = 0.01}});
  return form;
}

}  // namespace

MixerVariant GatedDeltaNetVariant() {
  return LinearVariantOf<GatedDeltaNetOptions, MakeGatedDeltaNetForm>("gated_delta_net");
}

// Gated DeltaProduct (Siems et al., 2025): Gated DeltaNet with several steps of the delta rule per
// token. Each step has a key, a value and a write strength of its own (HouseholderRow). The
// decay is optional.
namespace {

struct GatedDeltaProductOptions : OptionsOf<GatedDeltaProductOptions, GatedDeltaOptions> {
  int64_t num_householder = 2;
  bool use_forget_gate = true, use_output_gate = true;

  std::vector<Option> Fields() override {
    std::vector<Option> fields = GatedDeltaOptions::Fields();
    fields.push_back({"num_householder", &num_householder, {.max = 64}});
    fields.push_back({"use_forget_gate", &use_forget_gate});
    fields.push_back({"use_output_gate", &use_output_gate});
    return fields;
  }
};

LinearForm MakeGatedDeltaProductForm(const GatedDeltaProductOptions& options) {
  LinearForm form = MakeGatedDeltaForm(options);
  form.num_steps = options.num_householder;
  form.output_gate = options.use_output_gate ? OutputGate::kSilu : OutputGate::kNone;
  DeltaForm delta = {.beta_scale = options.allow_neg_eigval ? 2.0 : 1.0,
                     .num_steps = options.num_householder};
  if (options.use_forget_gate)
    delta.decay = SoftplusDecayForm{.num_heads = options.num_v_heads, .initial_min = 0.01};
  form.make_recurrence = MakeDeltaRecurrence(delta);
  return form;
}

}  // namespace

MixerVariant GatedDeltaProductVariant() {
  return LinearVariantOf<GatedDeltaProductOptions, MakeGatedDeltaProductForm>(
      "gated_delta_product");
}

// Kimi Delta Attention (Kimi Team, 2025): the delta rule with a decay per key channel and token,
//
//   S_t = (I - beta_t k_t^T k_t) diag(alpha_t) S_{t-1} + beta_t k_t^T v_t,
//   ln alpha_t = -exp(A_log) softplus(W_2 W_1 x_t + dt_bias),   beta_t = sigmoid(W_b x_t)
//
// or, with a lower bound, ln alpha_t = lower_bound sigmoid(exp(A_log) (W_2 W_1 x_t + dt_bias)). The
// output gate is a sigmoid with a matrix of low rank.
namespace {

struct KdaOptions : OptionsOf<KdaOptions, GatedDeltaOptions> {
  double lower_bound = 0;  // of the log decay per token; 0: none
  bool gate_bias = true;   // of the output gate; Kimi Linear has none

  std::vector<Option> Fields() override {
    std::vector<Option> fields = GatedDeltaOptions::Fields();
    fields.push_back({"lower_bound", &lower_bound});
    fields.push_back({"gate_bias", &gate_bias});
    return fields;
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    GatedDeltaOptions::Resolve(sizes, problems);
    problems.Require(lower_bound <= 0 && std::isfinite(lower_bound), "option lower_bound is ",
                     lower_bound, ". Use a number below 0, for example -5, or 0 for no bound.");
  }
};

LinearForm MakeKdaForm(const KdaOptions& options) {
  LinearForm form = MakeGatedDeltaForm(options);
  form.output_gate = OutputGate::kSigmoid;
  form.gate_rank = options.head_dim_v;
  form.gate_bias = options.gate_bias;
  // With a bound, fla starts from A = 1.
  form.make_recurrence = MakeDeltaRecurrence(
      {.beta_scale = options.allow_neg_eigval ? 2.0 : 1.0,
       .decay = SoftplusDecayForm{.num_heads = options.num_v_heads,
                                  .num_channels = options.head_dim,
                                  .rank = options.head_dim_v,
                                  .lower_bound = options.lower_bound,
                                  .initial_max = options.lower_bound < 0 ? 1.0 : 16.0}});
  return form;
}

}  // namespace

MixerVariant KdaVariant() { return LinearVariantOf<KdaOptions, MakeKdaForm>("kda"); }

}  // namespace halflife::model
