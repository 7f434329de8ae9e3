// Internal header of the channel mixers: declares the functions that return their variants, and
// what channel mixers with wider inner channels share: the options that set their width, and the
// matrices into and out of them.
#pragma once

#include <cstdint>
#include <string>

#include "model/channel_mixers/channel_mixer.h"
#include "model/projections.h"

namespace halflife::model {

using ChannelMixerVariant = Variant<ChannelMixer, PartContext>;

#define HL_CHANNEL_MIXER(Make) ChannelMixerVariant Make();
#include "model/channel_mixers/channel_mixers.inc"
#undef HL_CHANNEL_MIXER

// The width of the inner channels, given directly or derived from a ratio.
struct WidthOptions {
  int64_t width = 0;  // 0: derived from `ratio`.
  double ratio = 4;
  // Sets `width` if it is 0. `derived` is the width that follows from the ratio and the model's
  // width; it is rounded up to a multiple of `multiple`. Reports a ratio that gives no valid width.
  void Resolve(double derived, int64_t multiple, ProblemList& problems);
};

// The common options of glu and mlp.
struct ActivatedOptions : OptionsOf<ActivatedOptions> {
  WidthOptions inner;
  std::string activation = "gelu";
  bool bias = false;
  std::vector<Option> Fields() override;
};

// One matrix with an optional bias.
struct Projection {
  Parameter weight, bias;  // `bias` is undeclared if there is none.
  Projection() = default;
  Projection(const PartContext& context, const std::string& name, const MatrixShape& shape,
             bool with_bias);
};

// Returns the matrix out of the inner channels, named down_proj.
OutputProjection DownProjection(const PartContext& context, int64_t width, bool with_bias);

}  // namespace halflife::model
