// Internal header of the mixers: a mixer's variant, and the functions that return the variants.
#pragma once

#include "model/mixer.h"

namespace halflife::model {

using MixerVariant = Variant<Mixer, PartContext>;

template <typename Options, typename Class>
MixerVariant MixerVariantOf(const char* name) {
  return VariantOf<Options, Class, Mixer, PartContext>(name);
}

#define HL_MIXER(Make) MixerVariant Make();
#include "model/mixers/mixers.inc"
#undef HL_MIXER

}  // namespace halflife::model
