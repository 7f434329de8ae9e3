#include "model/channel_mixers/channel_mixer.h"

#include "kernels/linear/linear.h"
#include "model/activation.h"
#include "model/channel_mixers/variants.h"

namespace halflife::model {
namespace {

std::vector<ChannelMixerVariant> ChannelMixerVariants() {
  return {
#define HL_CHANNEL_MIXER(Make) Make(),
#include "model/channel_mixers/channel_mixers.inc"
#undef HL_CHANNEL_MIXER
  };
}

}  // namespace

const PartKind kChannelMixers = {"channel_mixer", "swiglu",
                                 [] { return InfosOf(ChannelMixerVariants()); }};

std::unique_ptr<ChannelMixer> MakeChannelMixer(const ChannelMixerConfig& config,
                                               const PartContext& context) {
  return MakePart(ChannelMixerVariants(), config, context.sizes, context);
}

void WidthOptions::Resolve(double derived, int64_t multiple, ProblemList& problems) {
  if (width > 0) return;
  const bool sane = ratio > 0 && ratio <= 1e6;
  problems.Require(sane, "ratio is ", ratio, "; a number above 0 would work (4 is usual)");
  if (!sane) return;
  const auto wanted = static_cast<int64_t>(derived);
  const int64_t rounded = (wanted + multiple - 1) / multiple * multiple;
  problems.Require(rounded >= 1 && rounded <= kMaxWidth, "ratio is ", ratio, ", which makes it ",
                   rounded, " wide; 1 to ", kMaxWidth, " would work");
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

DownProjection::DownProjection(const PartContext& context, int64_t width, bool with_bias) {
  if (context.inner_norm != nullptr)
    inner_norm_ = MakeNorm(*context.inner_norm, context.Below("inner_norm."), width);
  down_ =
      Projection(context, "down_proj",
                 {.out = context.model_dim(), .in = width, .init_scale = context.output_init_scale},
                 with_bias);
}

at::Tensor DownProjection::operator()(const at::Tensor& y) const {
  return AddBias(kernels::Linear(inner_norm_ == nullptr ? y : (*inner_norm_)(y), *down_.weight),
                 down_.bias);
}

}  // namespace halflife::model
