#include "model/norms/norm.h"

#include <ATen/TensorOperators.h>

#include "model/norms/variants.h"

namespace halflife::model {
namespace {

std::vector<NormVariant> NormVariants() {
  return {
#define HL_NORM(Make) Make(),
#include "model/norms/norms.inc"
#undef HL_NORM
  };
}

}  // namespace

const PartKind kNorms = {"norm", "rms_norm", [] { return InfosOf(NormVariants()); }};

at::Tensor Norm::AddAndNorm(at::Tensor& x, const at::Tensor& branch) const {
  x = x + branch;
  return (*this)(x);
}

std::unique_ptr<Norm> MakeNorm(const PartConfig& config, const PartContext& context, int64_t dim) {
  return MakePart(NormVariants(), config, context.sizes, NormContext{context, dim});
}

}  // namespace halflife::model
