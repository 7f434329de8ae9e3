// Internal header of the mixers: a mixer's variant, and the functions that return the variants.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/mixer.h"

namespace halflife::model {

struct MixerVariant : Variant<Mixer, PartContext> {
  // Makes the forms that the conformance suite builds, with model_dim 16.
  std::function<std::vector<MixerConfig>()> test_forms;
};

// `test_forms`: the options of each form.
template <typename Options, typename Class>
MixerVariant MixerVariantOf(const char* name, std::vector<std::vector<Assignment>> test_forms) {
  return {VariantOf<Options, Class, Mixer, PartContext>(name),
          [name, test_forms = std::move(test_forms)] {
            std::vector<MixerConfig> forms;
            for (const std::vector<Assignment>& options : test_forms)
              forms.emplace_back(name, options);
            return forms;
          }};
}

#define HL_MIXER(Make) MixerVariant Make();
#include "model/mixers/mixers.inc"
#undef HL_MIXER

}  // namespace halflife::model
