// The linear attention of Based (Arora et al., 2024). The similarity is the second-order Taylor
// polynomial of exp(s), kappa(s) = 1 + s + s^2 / 2, which is never below 1/2.
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

// With 3 heads, 16 channels give 5 per head and leave one channel unused.
MixerVariant BasedVariant() {
  return MixerVariantOf<BasedOptions, Based>(
      "based", {{{"num_heads", 2}, {"feature_dim", 4}},
                {{"num_heads", 3}, {"feature_dim", 5}, {"eps", 0.5}}});
}

}  // namespace halflife::model
