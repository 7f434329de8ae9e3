// No norm: returns its input. Used as the final norm of models that have none before the head.
#include "model/norms/variants.h"

namespace halflife::model {
namespace {

struct NoNormOptions : OptionsOf<NoNormOptions> {};

class NoNorm : public Norm {
 public:
  NoNorm(const NoNormOptions&, const NormContext&) {}
  at::Tensor operator()(const at::Tensor& x) const override { return x; }
};

}  // namespace

NormVariant NoNormVariant() { return VariantOf<NoNormOptions, NoNorm, Norm, NormContext>("none"); }

}  // namespace halflife::model
