// None: what it reads, as it is. Before the head of models that end without a norm.
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
