#include "model/part_context.h"

namespace halflife::model {

PartContext PartContext::Below(const std::string& name) const {
  PartContext below = *this;
  below.prefix += name;
  return below;
}

Parameter DeclareMatrix(const PartContext& context, const std::string& name,
                        const MatrixShape& shape) {
  return context.parameters->Declare(
      {.name = context.prefix + name, .shape = {shape.out, shape.in}, .weight_decay = true},
      Init::Normal(context.initializer_range * shape.init_scale));
}

Parameter DeclareNorm(const PartContext& context, const std::string& name, int64_t dim) {
  return context.parameters->Declare(
      {.name = context.prefix + name, .shape = {dim}, .region = dist::Region::kFp32}, Init::Ones());
}

Parameter DeclareBias(const PartContext& context, const std::string& name, int64_t dim) {
  return context.parameters->Declare({.name = context.prefix + name, .shape = {dim}},
                                     Init::Zeros());
}

}  // namespace halflife::model
