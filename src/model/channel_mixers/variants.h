// Internal header of the channel mixers: declares the functions that return their variants.
#pragma once

#include "model/channel_mixers/channel_mixer.h"

namespace halflife::model {

using ChannelMixerVariant = Variant<ChannelMixer, PartContext>;

#define HL_CHANNEL_MIXER(Make) ChannelMixerVariant Make();
#include "model/channel_mixers/channel_mixers.inc"
#undef HL_CHANNEL_MIXER

}  // namespace halflife::model
