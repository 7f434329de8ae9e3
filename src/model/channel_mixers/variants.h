// Inner header of the channel mixers: the functions that give their variants, and what several
// share.
#pragma once

#include <optional>

#include "model/channel_mixers/channel_mixer.h"
#include "model/norms/norm.h"

namespace halflife::model {

using ChannelMixerVariant = Variant<ChannelMixer, PartContext>;

#define HL_CHANNEL_MIXER(Make) ChannelMixerVariant Make();
#include "model/channel_mixers/channel_mixers.inc"
#undef HL_CHANNEL_MIXER

// The width of the inner channels, given or derived from a ratio.
struct WidthOptions {
  int64_t width = 0;  // 0: derived from the ratio
  double ratio = 4;
  // Reports a ratio that gives no width; else sets `width`. `derived`: of the model's dim.
  void Resolve(double derived, int64_t multiple, ProblemList& problems);
};

// What glu and mlp have in common.
struct ActivatedOptions : OptionsOf<ActivatedOptions> {
  WidthOptions inner;
  std::string activation = "gelu";
  bool bias = false;
  std::vector<Option> Fields() override;
};

// One matrix with an optional bias.
struct Projection {
  Parameter weight, bias;  // bias undeclared: none
  Projection() = default;
  Projection(const PartContext& context, const std::string& name, const MatrixShape& shape,
             bool with_bias);
};

// y W^T + b of the inner channels, after the sub-LN norm where the block wants one.
class DownProjection {
 public:
  DownProjection() = default;
  DownProjection(const PartContext& context, int64_t width, bool with_bias);
  at::Tensor operator()(const at::Tensor& y) const;

 private:
  std::unique_ptr<const Norm> inner_norm_;
  Projection down_;
};

}  // namespace halflife::model
