// Internal header of the mixers: a mixer's variant, and the functions that return the variants.
#pragma once

#include <vector>

#include "model/mixer.h"

namespace halflife::model {

struct MixerVariant : Variant<Mixer, PartContext> {
  std::vector<std::vector<Assignment>> test_forms;
};

// `test_forms`: the options of each form that the conformance suite builds, with model_dim 16.
template <typename Options, typename Class>
MixerVariant MixerVariantOf(const char* name, std::vector<std::vector<Assignment>> test_forms) {
  return {VariantOf<Options, Class, Mixer, PartContext>(name), std::move(test_forms)};
}

#define HL_MIXER(Make) MixerVariant Make();
#include "model/mixers/mixers.inc"
#undef HL_MIXER

}  // namespace halflife::model
