#include "model/part_context.h"

#include <cmath>
#include <utility>

namespace halflife::model {

PartContext PartContext::Below(const std::string& name) const {
  PartContext below = *this;
  below.prefix += name;
  return below;
}

Init PartContext::MatrixInit(int64_t fan_in, double scale) const {
  if (!fan_in_init) return Init::Normal(initializer_range * scale);
  // Truncating a normal at two standard deviations divides its standard deviation by this factor.
  constexpr double kOfCut = 1.13684723;
  return Init::TruncatedNormal(scale * kOfCut *
                               std::pow(static_cast<double>(sizes.num_layers), -1.0 / 3) /
                               std::sqrt(static_cast<double>(fan_in)));
}

Parameter DeclareMatrix(const PartContext& context, const std::string& name,
                        const MatrixShape& shape) {
  using Parts = std::vector<MatrixPart>;
  return context.parameters->Declare(
      {.name = context.prefix + name,
       .shape = {shape.out, shape.in},
       .weight_decay = true,
       .float8 = shape.float8,
       .parts =
           shape.parts.empty() ? Parts{{.rows = shape.out, .heads = shape.heads}} : shape.parts},
      shape.init.value_or(context.MatrixInit(shape.in, shape.init_scale)));
}

Parameter DeclareTable(const PartContext& context, const std::string& name,
                       const MatrixShape& shape) {
  return context.parameters->Declare(
      {.name = context.prefix + name, .shape = {shape.out, shape.in}, .weight_decay = true},
      context.MatrixInit(shape.in, shape.init_scale));
}

std::vector<MatrixPart> EqualParts(int64_t count, int64_t rows) {
  return std::vector<MatrixPart>(static_cast<size_t>(count), MatrixPart{.rows = rows});
}

Parameter DeclareFp32(const PartContext& context, const std::string& name,
                      std::vector<int64_t> shape, const Init& init) {
  return context.parameters->Declare(
      {.name = context.prefix + name, .shape = std::move(shape), .region = dist::Region::kFp32},
      init);
}

Parameter DeclareNorm(const PartContext& context, const std::string& name, int64_t dim) {
  return DeclareFp32(context, name, {dim}, Init::Ones());
}

Parameter DeclareBias(const PartContext& context, const std::string& name, int64_t dim) {
  return context.parameters->Declare({.name = context.prefix + name, .shape = {dim}},
                                     Init::Zeros());
}

}  // namespace halflife::model
