// Gated DeltaNet (Yang et al., 2025): the delta rule with a decay per value head and token,
//
//   S_t = alpha_t (I - beta_t k_t^T k_t) S_{t-1} + beta_t k_t^T v_t,
//   ln alpha_t = -exp(A_log) softplus(W_a x_t + dt_bias),   beta_t = sigmoid(W_b x_t)
//
// with |q_t| = |k_t| = 1 after a short convolution. Several value heads may share one head of q and
// k. Parameters are named as in fla.
#include "model/mixers/linear/delta_recurrence.h"
#include "model/mixers/linear/gated_delta_options.h"

namespace halflife::model {
namespace {

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

class GatedDeltaNet : public LinearMixer {
 public:
  GatedDeltaNet(const GatedDeltaNetOptions& options, const PartContext& context)
      : LinearMixer(options.heads(), context, MakeGatedDeltaNetForm(options)) {}
};

}  // namespace

MixerVariant GatedDeltaNetVariant() {
  return MixerVariantOf<GatedDeltaNetOptions, GatedDeltaNet>(
      "gated_delta_net", {{{"num_heads", 2}},
                          {{"num_heads", 1},
                           {"num_v_heads", 2},
                           {"head_dim", 8},
                           {"expand_v", 2.0},
                           {"allow_neg_eigval", true},
                           {"output_gate", "sigmoid"}},
                          {{"num_heads", 1}, {"conv_size", 1}},
                          {{"num_heads", 2}, {"use_short_conv", false}, {"output_gate", "none"}}});
}

}  // namespace halflife::model
