// Gated DeltaProduct (Siems et al., 2025): Gated DeltaNet with several steps of the delta rule per
// token. Each step has a key, a value and a write strength of its own (householder_steps.h). The
// decay is optional. Parameters are named as in fla.
#include "model/mixers/linear/delta_recurrence.h"
#include "model/mixers/linear/gated_delta_options.h"

namespace halflife::model {
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

class GatedDeltaProduct : public LinearMixer {
 public:
  GatedDeltaProduct(const GatedDeltaProductOptions& options, const PartContext& context)
      : LinearMixer(options.heads(), context, MakeGatedDeltaProductForm(options)) {}
};

}  // namespace

MixerVariant GatedDeltaProductVariant() {
  return MixerVariantOf<GatedDeltaProductOptions, GatedDeltaProduct>(
      "gated_delta_product", {{{"num_heads", 2}},
                              {{"num_heads", 1},
                               {"num_v_heads", 2},
                               {"head_dim", 8},
                               {"expand_v", 2.0},
                               {"allow_neg_eigval", true},
                               {"num_householder", 3},
                               {"use_forget_gate", false}},
                              {{"num_heads", 2},
                               {"use_short_conv", false},
                               {"num_householder", 1},
                               {"use_output_gate", false}}});
}

}  // namespace halflife::model
