// Retention of RetNet (Sun et al., 2023) in fla's form: q and k are rotated, and the decay of head
// h is gamma_h = 1 - 2^(-5-h) for all tokens.
#include "model/mixers/linear/decay_recurrence.h"
#include "model/mixers/linear/linear_mixer.h"
#include "model/mixers/linear/log_decay.h"

namespace halflife::model {
namespace {

struct RetentionOptions : OptionsOf<RetentionOptions, GatedHeadOptions> {
  double rope_theta = 10000;

  RetentionOptions() : OptionsOf(/*heads=*/8, /*k=*/1, /*v=*/2) {}
  std::vector<Option> Fields() override {
    std::vector<Option> fields = GatedHeadOptions::Fields();
    fields.push_back({"rope_theta", &rope_theta});
    return fields;
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    GatedHeadOptions::Resolve(sizes, problems);
    problems.Require(rope_theta > 1, "option rope_theta is ", rope_theta,
                     ". Use a number above 1.");
    problems.Require(head_dim_k % 2 == 0, "key width per head ", head_dim_k,
                     " must be even, because the rotation pairs channels.");
  }
};

LinearForm MakeRetentionForm(const RetentionOptions& options) {
  LinearForm form = MakeLinearForm(options);
  form.make_recurrence = MakeDecayRecurrence(
      {.rope_theta = options.rope_theta, .make_decay = [options](const PartContext&) {
         return std::make_unique<FixedDecay>(RetentionLogDecays(options.num_heads));
       }});
  return form;
}

}  // namespace

MixerVariant RetentionVariant() {
  return LinearVariantOf<RetentionOptions, MakeRetentionForm>("retention");
}

}  // namespace halflife::model
