// Kimi Delta Attention (Kimi Team, 2025): the delta rule with a decay per key channel and token,
//
//   S_t = (I - beta_t k_t^T k_t) diag(alpha_t) S_{t-1} + beta_t k_t^T v_t,
//   ln alpha_t = -exp(A_log) softplus(W_2 W_1 x_t + dt_bias),   beta_t = sigmoid(W_b x_t)
//
// or, with a lower bound, ln alpha_t = lower_bound sigmoid(exp(A_log) (W_2 W_1 x_t + dt_bias)). The
// output gate is a sigmoid with a matrix of low rank. Parameters are named as in fla.
#include <cmath>

#include "model/mixers/linear/delta_recurrence.h"
#include "model/mixers/linear/gated_delta_options.h"

namespace halflife::model {
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

class Kda : public LinearMixer {
 public:
  Kda(const KdaOptions& options, const PartContext& context)
      : LinearMixer(options.heads(), context, MakeKdaForm(options)) {}
};

}  // namespace

MixerVariant KdaVariant() {
  return MixerVariantOf<KdaOptions, Kda>(
      "kda", {{{"num_heads", 2}},
              {{"num_heads", 1},
               {"num_v_heads", 2},
               {"head_dim", 8},
               {"expand_v", 2.0},
               {"allow_neg_eigval", true},
               {"lower_bound", -5.0}},
              {{"num_heads", 2}, {"use_short_conv", false}, {"gate_bias", false}}});
}

}  // namespace halflife::model
