// Based (Arora et al., 2024), its linear attention: the similarity is the Taylor polynomial of
// exp(s) to the second order, kappa(s) = 1 + s + s^2 / 2, which is never below 1/2.
#include "model/mixers/polynomial/polynomial_mixer.h"

namespace halflife::model {
namespace {

struct BasedOptions : OptionsOf<BasedOptions, PolynomialOptions> {};

class Based : public PolynomialMixer {
 public:
  Based(const BasedOptions& options, const PartContext& context)
      : PolynomialMixer(options, context, {.weights = {.a0 = 1, .a1 = 1, .a2 = 0.5}}) {}
};

}  // namespace

// 3 heads of a model of 16 channels have 5 a head, and leave one out.
MixerVariant BasedVariant() {
  return MixerVariantOf<BasedOptions, Based>(
      "based", {{{"num_heads", 2}, {"feature_dim", 4}},
                {{"num_heads", 3}, {"feature_dim", 5}, {"eps", 0.5}}});
}

}  // namespace halflife::model
