#include "model/channel_mixers/inner_channels.h"

#include "model/activation.h"

namespace halflife::model {

void WidthOptions::Resolve(double derived, int64_t multiple, ProblemList& problems) {
  if (width > 0) return;
  const bool sane = ratio > 0 && ratio <= 1e6;
  problems.Require(sane, "ratio is ", ratio, ". Use a number above 0 (4 is usual).");
  if (!sane) return;
  const auto wanted = static_cast<int64_t>(derived);
  const int64_t rounded = (wanted + multiple - 1) / multiple * multiple;
  problems.Require(rounded >= 1 && rounded <= kMaxWidth, "ratio is ", ratio,
                   ", which gives a width of ", rounded,
                   ". Use a ratio that gives a width of 1 to ", kMaxWidth, ".");
  width = rounded;
}

std::vector<Option> ActivatedOptions::Fields() {
  return {{"width", &inner.width, {.min = 0}},
          {"ratio", &inner.ratio},
          {"activation", &activation, {.choices = Activation::Names()}},
          {"bias", &bias}};
}

Projection::Projection(const PartContext& context, const std::string& name,
                       const MatrixShape& shape, bool with_bias)
    : weight(DeclareMatrix(context, name + ".weight", shape)) {
  if (with_bias) bias = DeclareBias(context, name + ".bias", shape.out);
}

// The scale is part of the standard deviation of the initial values, as in DeclareMatrix. Scaling
// the drawn values afterwards would round some of them differently in the last bit.
OutputProjection DownProjection(const PartContext& context, int64_t width, bool with_bias) {
  return {context,
          width,
          with_bias,
          {.name = "down_proj", .init = context.MatrixInit(width, context.output_init_scale)}};
}

}  // namespace halflife::model
