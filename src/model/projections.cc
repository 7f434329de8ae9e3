#include "model/projections.h"

#include "ops/linear/linear.h"

namespace halflife::model {

OutputProjection::OutputProjection(const PartContext& context, int64_t width, bool bias,
                                   const OutputForm& form) {
  if (context.inner_norm != nullptr)
    inner_norm_ = MakeNorm(*context.inner_norm, context.Below("inner_norm."), width);
  weight_ = DeclareMatrix(
      context, form.name + ".weight",
      {.out = context.model_dim(),
       .in = width,
       .init = form.init.value_or(context.MatrixInit(width).Scaled(context.output_init_scale)),
       .float8 = true});
  if (bias) bias_ = DeclareBias(context, form.name + ".bias", context.model_dim());
}

at::Tensor OutputProjection::operator()(const at::Tensor& y) const {
  return AddBias(ops::Linear(inner_norm_ == nullptr ? y : (*inner_norm_)(y), *weight_), bias_);
}

std::optional<at::Tensor> OutputProjection::OfNorm(const ops::RowInput& input) const {
  if (inner_norm_ != nullptr || !ops::HasNormedRowProducts(input, *weight_)) return std::nullopt;
  return AddBias(ops::RowProducts(input, {{.weight = *weight_}}).ys[0], bias_);
}

}  // namespace halflife::model
